"""What watches a run: metrics, console, timers, memory, sentinels, sampled rollouts."""
