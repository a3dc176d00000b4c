# SPDX-License-Identifier: Apache-2.0
"""Explains what an unchanged program waits for: collectors, attribution of samples, verdict.

Observes a process tree from outside, without root. Changes nothing in it, prints nothing, moves no data.
"""
