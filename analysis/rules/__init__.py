"""The claims of the paper, one file each, with the rule that decides over it; analysis/claims.py writes what they say.

Thresholds come from the paper's numbers where it gives any, and none from our runs. A rule turns runs into one number a
seed that is positive where the claim holds, and verdicts.judge asks whether their mean can be told from zero.
"""
