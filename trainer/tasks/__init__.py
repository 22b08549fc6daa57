"""What is trained and tested on: suites, generated programs and kernels, recorded times."""
