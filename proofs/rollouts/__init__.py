"""Explores the machine of a `RolloutQueue` exhaustively, in small worlds.

::

    python -m proofs.rollouts                   # all configurations
    python -m proofs.rollouts "strict B2"       # those whose name contains this
    python -m proofs.rollouts --mistakes        # which configuration finds each seeded mistake

A world (`proofs.rollouts.world`) stands for the source, the user's functions, the trainer and the
threads. It knows of the machine what a caller knows: the effects. Every event that could happen
next is tried in every state. Checked are the guarantees of the queue, that no state is without a
next event before the end, and that no run goes round in a circle.
"""
