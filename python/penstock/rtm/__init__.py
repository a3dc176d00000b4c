# SPDX-License-Identifier: Apache-2.0
"""Reverse time migration of seismic shots with Devito: velocity models, modelling and imaging.

Units are km, s, Hz and km/s. Functions take and return arrays, and do not depend on a store.
"""
