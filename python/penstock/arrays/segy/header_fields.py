# SPDX-License-Identifier: Apache-2.0
"""Fields of SEG-Y headers: name, first byte (counted from 1, as in the standard) and type.

Source: SEG-Y revision 2.1 (SEG Technical Standards Committee, 2023), tables 2 and 3.
"""

from __future__ import annotations

import numpy as np

__all__ = ["BINARY_FIELDS", "TRACE_FIELDS", "parse_field", "trace_dtype"]

TRACE_FIELDS: dict[str, tuple[int, str]] = {
    "trace_in_line": (1, "i4"), "trace_in_file": (5, "i4"), "field_record": (9, "i4"), "channel": (13, "i4"),
    "source_point": (17, "i4"), "cdp": (21, "i4"), "trace_in_cdp": (25, "i4"), "trace_id": (29, "i2"),
    "vertical_sum": (31, "i2"), "horizontal_sum": (33, "i2"), "data_use": (35, "i2"), "offset": (37, "i4"),
    "receiver_elevation": (41, "i4"), "source_elevation": (45, "i4"), "source_depth": (49, "i4"),
    "receiver_datum": (53, "i4"), "source_datum": (57, "i4"), "source_water_depth": (61, "i4"),
    "receiver_water_depth": (65, "i4"), "elevation_scalar": (69, "i2"), "coordinate_scalar": (71, "i2"),
    "source_x": (73, "i4"), "source_y": (77, "i4"), "receiver_x": (81, "i4"), "receiver_y": (85, "i4"),
    "coordinate_units": (89, "i2"), "weathering_velocity": (91, "i2"), "subweathering_velocity": (93, "i2"),
    "source_uphole_time": (95, "i2"), "receiver_uphole_time": (97, "i2"), "source_static": (99, "i2"),
    "receiver_static": (101, "i2"), "total_static": (103, "i2"), "lag_a": (105, "i2"), "lag_b": (107, "i2"),
    "delay_time": (109, "i2"), "mute_start": (111, "i2"), "mute_end": (113, "i2"), "samples": (115, "u2"),
    "sample_interval": (117, "u2"), "gain_type": (119, "i2"), "gain_constant": (121, "i2"), "initial_gain": (123, "i2"),
    "correlated": (125, "i2"), "sweep_start": (127, "i2"), "sweep_end": (129, "i2"), "sweep_length": (131, "i2"),
    "sweep_type": (133, "i2"), "sweep_taper_start": (135, "i2"), "sweep_taper_end": (137, "i2"),
    "taper_type": (139, "i2"), "alias_frequency": (141, "i2"), "alias_slope": (143, "i2"),
    "notch_frequency": (145, "i2"), "notch_slope": (147, "i2"), "low_cut": (149, "i2"), "high_cut": (151, "i2"),
    "low_cut_slope": (153, "i2"), "high_cut_slope": (155, "i2"), "year": (157, "i2"), "day": (159, "i2"),
    "hour": (161, "i2"), "minute": (163, "i2"), "second": (165, "i2"), "time_basis": (167, "i2"),
    "weighting": (169, "i2"), "roll_switch_group": (171, "i2"), "first_trace_group": (173, "i2"),
    "last_trace_group": (175, "i2"), "gap_size": (177, "i2"), "over_travel": (179, "i2"), "cdp_x": (181, "i4"),
    "cdp_y": (185, "i4"), "inline": (189, "i4"), "crossline": (193, "i4"), "shot_point": (197, "i4"),
    "shot_point_scalar": (201, "i2"), "value_unit": (203, "i2"), "transduction_mantissa": (205, "i4"),
    "transduction_exponent": (209, "i2"), "transduction_unit": (211, "i2"), "device": (213, "i2"),
    "time_scalar": (215, "i2"), "source_type": (217, "i2"), "source_direction": (219, "S6"),
    "source_measurement": (225, "S6"), "source_measurement_unit": (231, "i2"), "unassigned": (233, "S8"),
}  # fmt: skip

BINARY_FIELDS: dict[str, tuple[int, str]] = {
    "job": (3201, "i4"), "line": (3205, "i4"), "reel": (3209, "i4"), "traces_per_ensemble": (3213, "i2"),
    "auxiliary_traces": (3215, "i2"), "sample_interval": (3217, "u2"), "original_interval": (3219, "u2"),
    "samples": (3221, "u2"), "original_samples": (3223, "u2"), "format": (3225, "u2"), "ensemble_fold": (3227, "i2"),
    "sorting": (3229, "i2"), "vertical_sum": (3231, "i2"), "measurement_system": (3255, "i2"),
    "impulse_polarity": (3257, "i2"), "vibratory_polarity": (3259, "i2"), "revision": (3501, "u2"),
    "fixed_length": (3503, "i2"), "extended_headers": (3505, "i2"),
}  # fmt: skip

_TYPES = {"i1": 1, "i2": 2, "i4": 4, "i8": 8, "u1": 1, "u2": 2, "u4": 4, "f4": 4, "f8": 8}


def trace_dtype(byte_order: str, header_bytes: int = 240) -> np.dtype[np.void]:
    """Return the NumPy type of a trace header, with all fields of the standard. `byte_order` is `big` or `little`."""
    sign = ">" if byte_order == "big" else "<"
    kinds = [kind if kind.startswith("S") else sign + kind for _, kind in TRACE_FIELDS.values()]
    offsets = [byte - 1 for byte, _ in TRACE_FIELDS.values()]
    return np.dtype({"names": list(TRACE_FIELDS), "formats": kinds, "offsets": offsets, "itemsize": header_bytes})


def parse_field(text: str) -> tuple[int, str]:
    """Parse a field, which is given as its name (`cdp`), its first byte (`189`), or its first byte and type (`189:i4`).

    Returns:
        First byte and type.

    Raises:
        ValueError: The field or type does not exist, or the field is not within the 240 bytes.
    """
    numbers = {name: place for name, place in TRACE_FIELDS.items() if place[1] in _TYPES}
    if text in numbers:
        return numbers[text]
    byte_text, _, kind = text.partition(":")
    if not byte_text.isdecimal():
        raise ValueError(f"`{text}` is neither a header field nor a byte from 1 to 240")
    byte = int(byte_text)
    standard = dict(numbers.values())
    kind = kind or standard.get(byte, "i4")
    if kind not in _TYPES:
        raise ValueError(f"`{kind}` is not one of the types {', '.join(_TYPES)}")
    if not 1 <= byte <= 241 - _TYPES[kind]:
        raise ValueError(f"bytes {byte} to {byte + _TYPES[kind] - 1} are not within a trace header (1 to 240)")
    return byte, kind
