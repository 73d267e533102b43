(* Lemma 2 and the last step of theorem 1 of docs/finite_precision.md. *)
Require Import Reals Lra List.
Import ListNotations.
Open Scope R_scope.

(* Vectors are lists of real numbers. *)
Fixpoint square (x : list R) : R :=
  match x with [] => 0 | a :: x' => a * a + square x' end.

Definition norm x := sqrt (square x).

Fixpoint plus (x y : list R) : list R :=
  match x, y with
  | a :: x', b :: y' => (a + b) :: plus x' y'
  | _, _ => []
  end.

Definition minus x y := plus x (map Ropp y).

Fixpoint dot (x y : list R) : R :=
  match x, y with
  | a :: x', b :: y' => a * b + dot x' y'
  | _, _ => 0
  end.

Lemma square_nonnegative x : 0 <= square x.
Proof. induction x; simpl; nra. Qed.

Lemma square_of_sum x y : length x = length y ->
  square (plus x y) = square x + 2 * dot x y + square y.
Proof.
  revert y; induction x as [|a x IH]; intros [|b y]; simpl; intro L;
    try discriminate; [ring|].
  rewrite IH by (injection L; auto); ring.
Qed.

Lemma cauchy_schwarz x y : length x = length y ->
  dot x y * dot x y <= square x * square y.
Proof.
  revert y; induction x as [|a x IH]; intros [|b y]; simpl; intro L;
    try discriminate; [lra|].
  assert (I := IH y ltac:(injection L; auto)).
  assert (X := square_nonnegative x). assert (Y := square_nonnegative y).
  set (d := dot x y) in *. set (s := square x) in *. set (t := square y) in *.
  (* 2 a b d <= a a t + b b s, since d d <= s t. *)
  assert (H : 2 * (a * b) * d <= a * a * t + b * b * s).
  { assert (P := Rle_0_sqr a). assert (Q := Rle_0_sqr b). unfold Rsqr in *.
    assert (0 <= a * a * t) by (apply Rmult_le_pos; assumption).
    assert (0 <= b * b * s) by (apply Rmult_le_pos; assumption).
    apply Rsqr_incr_0_var; [|lra].
    assert (M : (a * a * (b * b)) * (d * d) <= (a * a * (b * b)) * (s * t)) by
      (apply Rmult_le_compat_l; [apply Rmult_le_pos|]; assumption).
    assert (N := Rle_0_sqr (a * a * t - b * b * s)). unfold Rsqr in *. lra. }
  nra.
Qed.

Lemma triangle x y : length x = length y -> norm (plus x y) <= norm x + norm y.
Proof.
  intro L. unfold norm.
  assert (X := square_nonnegative x). assert (Y := square_nonnegative y).
  assert (C := cauchy_schwarz x y L).
  apply Rsqr_incr_0_var; [|assert (A := sqrt_pos (square x));
    assert (B := sqrt_pos (square y)); lra].
  unfold Rsqr. rewrite sqrt_sqrt by apply square_nonnegative.
  rewrite square_of_sum by assumption.
  assert (D : dot x y <= sqrt (square x) * sqrt (square y)).
  { rewrite <- sqrt_mult by assumption. apply Rsqr_incr_0_var.
    - unfold Rsqr. rewrite sqrt_sqrt by nra. exact C.
    - apply sqrt_pos. }
  assert (A := sqrt_sqrt _ X). assert (B := sqrt_sqrt _ Y). nra.
Qed.

Definition near (a k : R) := Rabs (k - a) <= 1 / 2.

(* What rounding adds to a difference has a norm of at most sqrt d. *)
Lemma square_of_small x : Forall (fun e => Rabs e <= 1) x ->
  square x <= INR (length x).
Proof.
  induction 1 as [|e x E _ IH]; simpl square; [simpl; lra|].
  change (length (e :: x)) with (S (length x)). rewrite S_INR.
  assert (P := Rabs_pos e). assert (e * e = Rabs e * Rabs e) by
    (unfold Rabs; destruct (Rcase_abs e); ring).
  nra.
Qed.

Fixpoint all_near (x k : list R) : Prop :=
  match x, k with
  | [], [] => True
  | a :: x', m :: k' => near a m /\ all_near x' k'
  | _, _ => False
  end.

Lemma all_near_length x k : all_near x k -> length x = length k.
Proof.
  revert k; induction x; intros [|]; simpl; try tauto.
  intros [_ H]. f_equal. auto.
Qed.

Lemma split_rounded x y k m : all_near x k -> all_near y m ->
  length x = length y ->
  exists e, minus k m = plus (minus x y) e /\
    length e = length x /\ Forall (fun a => Rabs a <= 1) e.
Proof.
  revert y k m; induction x as [|a x IH]; intros [|b y] [|p k] [|q m];
    simpl; try tauto; try discriminate; intros A B L.
  - exists []. repeat split; constructor.
  - destruct A as [A A'], B as [B B']. injection L as L.
    destruct (IH y k m A' B' L) as (e & E & Le & F).
    exists ((p - a) - (q - b) :: e). unfold minus in *. simpl. rewrite E.
    repeat split; [f_equal; ring | f_equal; exact Le |].
    constructor; [|exact F].
    unfold near in *. revert A B. unfold Rabs.
    repeat destruct Rcase_abs; lra.
Qed.

Lemma minus_length x y : length x = length y -> length (minus x y) = length x.
Proof.
  revert y; induction x; intros [|]; simpl; try discriminate; auto.
  intro L. unfold minus in *. simpl. f_equal. apply IHx. injection L; auto.
Qed.

(* Lemma 2, for vectors that were divided by g. *)
Theorem rounding x y k m : all_near x k -> all_near y m ->
  length x = length y ->
  norm (minus k m) <= norm (minus x y) + sqrt (INR (length x)).
Proof.
  intros A B L. destruct (split_rounded x y k m A B L) as (e & E & Le & F).
  rewrite E. eapply Rle_trans.
  - apply triangle. rewrite minus_length by assumption. congruence.
  - apply Rplus_le_compat_l. unfold norm. apply sqrt_le_1_alt.
    rewrite <- Le. apply square_of_small. exact F.
Qed.

(* To cut off is 1-Lipschitz in each coordinate. *)
Definition cut M a := Rmax (- M) (Rmin a M).

Theorem cutting M a b : 0 <= M -> Rabs (cut M a - cut M b) <= Rabs (a - b).
Proof.
  intro P. unfold cut, Rmax, Rmin, Rabs.
  repeat destruct Rle_dec; repeat destruct Rcase_abs; lra.
Qed.

(* The last inequality of theorem 1. Two sums have errors p and q of at most
   e c + a, and their exact values differ by v, of norm at most
   c = (C - 2 a - g r) / (1 + 2 e), where r is the root of d. *)
Theorem sensitivity v p q C a g r e :
  0 <= e -> 0 < g -> length v = length p -> length p = length q ->
  let c := (C - 2 * a - g * r) / (1 + 2 * e) in
  norm v <= c -> norm p <= e * c + a -> norm q <= e * c + a ->
  norm (plus (plus v p) q) / g + r <= C / g.
Proof.
  intros E G L M c V P Q.
  assert (length (plus v p) = length v).
  { clear -L. revert p L; induction v; intros [|]; simpl; try discriminate;
      auto. }
  assert (T : norm (plus (plus v p) q) <= norm v + norm p + norm q).
  { eapply Rle_trans; [apply triangle; congruence|].
    apply Rplus_le_compat_r. apply triangle; assumption. }
  assert (S : c * (1 + 2 * e) = C - 2 * a - g * r) by
    (unfold c; field; lra).
  assert (U : norm (plus (plus v p) q) <= C - g * r) by lra.
  replace (C / g) with ((C - g * r) / g + r) by (field; lra).
  apply Rplus_le_compat_r. unfold Rdiv. apply Rmult_le_compat_r;
    [left; apply Rinv_0_lt_compat; assumption | assumption].
Qed.
