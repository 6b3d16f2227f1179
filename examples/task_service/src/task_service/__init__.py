"""A deployable task service whose API takes interactive logins and API keys."""
