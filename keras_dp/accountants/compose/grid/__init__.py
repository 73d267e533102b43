"""Loss distributions on a grid, composed by the fast Fourier transform."""
