# SPDX-License-Identifier: Apache-2.0
"""Reverse time migration as a job whose state is in an object store. Workers claim shots, and can be killed at any
time.

`prepare` creates the job, `worker` computes shots, and `stack` stacks the images of all shots. No scheduler needs to
store state.
"""
