"""`opferry-server doctor`: whether this host can run the backend aclnn, and what is missing."""
