"""`python -m pinprompt` runs the command line."""

from pinprompt.cli import main

main()
