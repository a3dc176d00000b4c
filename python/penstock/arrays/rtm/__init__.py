# SPDX-License-Identifier: Apache-2.0
"""Reverse time migration as a job whose state is in the object store: workers claim shots, and may die at any time.

`prepare` creates the job, `worker` computes shots, `stack` makes the image. No scheduler needs to remember anything.
"""
