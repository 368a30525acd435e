"""The incident on a twin of the machine it was on, with and without the governor, in minutes: ``governor demo``."""
