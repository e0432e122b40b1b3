"""The laboratory: published figures of gossip and membership, reproduced by simulation on Spark."""
