"""ISO/IEC 27559: a framework for de-identification."""

from keras_dp.reporting.standards.requirements import standard

ISO_27559 = standard(
    "iso-27559",
    """
ISO/IEC 27559:2022, Privacy enhancing data de-identification framework

The framework is for data that are made available. What is made available here
is what the rounds released, such as the weights of a model; the records stay
where they are.

6.2.2: Security and privacy practices
Assess the practices of those who get and keep the data.
-> people, access_control, READERS

6.2.3: Motives and capacity to re-identify
Assess who might try to identify somebody, why, and with which means.
-> attacker, means_of_others

6.3.2: Transparency and engagement
Say what is done, and listen to those whom it concerns.
-> information_given, purpose

6.3.3: Privacy-related harms
Assess the harm that identification or a right inference does.
-> harms, JUDGEMENT

7.2.2: Data principals
Say whose data they are, and how many people there are.
-> unit, unit_identity, number_of_units

7.2.3, 7.2.4, 7.2.5: Types of data, attributes and the data set
Describe the kind of data, the attributes by what they could identify, and the
data set as a whole.
-> data_description, data_collection

7.3.2: Largest or average risk
Say whether the risk is that of the person with the largest one, or an average.
-> attacker, membership

7.3.3: Attacks on the population or on the sample
Say whether the attacker knows that somebody is in the data.
-> mechanisms, other_releases

7.3.4: Data privacy model
Name the formal model of privacy, if there is one, and its parameters.
-> guarantee, accountants, epsilon_choice

8.2.2: Quantified identifiability
Put numbers on the likelihood of identification, and compare them with a
threshold.
-> reconstruction, JUDGEMENT

8.2.3: Adversarial testing
Let somebody try to identify people, and keep the result.
-> audits, attack_tests, AUDITS

8.3.2: Reconfigured environment
Say which controls around the data lower the risk.
-> measures, trust_model, side_channels, UNPROTECTED, TRUSTED

8.3.3: Transformed data
Say how data were changed to lower the risk, and what that costs in use.
-> mechanisms, randomness, metrics, utility, bias_by_group, ROUNDING

8.3.4: Re-evaluation
Assess again after a change, until the risk is low enough.
-> choices, coverage, tuning, OTHER_RUNS, OTHER_RELEASES

9.2.2: Roles and responsibilities
Say who is responsible for what.
-> roles

9.2.3: Principles, policies and procedures
Have rules for de-identification before data are made available.
-> budget, policies, further_releases

9, after data are made available: Monitoring
Watch for new data, new attacks and other uses, and act.
-> software, monitoring

9, after data are made available: Incidents
Be ready for an identification or an error.
-> incident_response
""",
)
