"""Who may connect, and who calls: certificates, tokens, and what is believed of a proxy."""
