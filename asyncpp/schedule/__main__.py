import sys

from asyncpp.schedule.show import main

sys.exit(main(sys.argv[1:]))
