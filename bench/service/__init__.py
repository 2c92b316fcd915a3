"""The hub as a service: jobs at one hub beside jobs with servers of their own, and beside each other."""
