"""The hub as a service: jobs at one hub beside jobs with their own servers, and beside each other."""
