"""The governor in virtual time: agents, the deciding code of the gateway, and the engine's twin."""
