"""A check-up of a network: measured collectives beside other machines, data sheets and the curves of known faults."""
