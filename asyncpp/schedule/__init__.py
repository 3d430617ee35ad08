"""Pipeline schedules as data: lists of actions that are built, checked, counted, timed, drawn and run. No torch here.

action, text: the lists and their text form. builders: gpipe, one_f_one_b, interleaved, two_bw, pipedream, wpipe.
walk, validate: order and correctness. staleness, peaks, timeline: what follows from a list. draw, show: pictures.
split: layers to stages.
"""
