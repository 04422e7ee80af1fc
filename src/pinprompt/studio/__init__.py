"""`pinprompt studio`: a page on this machine to search from, watch, compare and try prompts."""
