# SPDX-License-Identifier: Apache-2.0
"""Names in MDIO v1 (package `multidimio`): header fields, dimensions, coordinates and survey templates.

Source: groups that multidimio 1.2.3 creates from SEG-Y files of revision 1. In such a group, `headers` is an array of
structures, which contain the fields below without gaps. The fields cover bytes 1 to 232 of a trace header, in the byte
order of the machine.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock.arrays.segy.header_fields import TRACE_FIELDS

__all__ = ["API_VERSION", "BINARY_FIELDS", "COORDINATES", "DIMENSIONS", "HEADER_FIELDS", "TEMPLATES", "standard_names", "struct_dtype"]  # fmt: skip

API_VERSION = "1.2.3"
"""Version of multidimio whose group format `--layout mdio` writes."""

_NAMES = [
    "trace_seq_num_line", "trace_seq_num_reel", "orig_field_record_num", "trace_num_orig_record",
    "energy_source_point_num", "ensemble_num", "trace_num_ensemble", "trace_id_code", "vertically_summed_traces",
    "horizontally_stacked_traces", "data_use", "source_to_receiver_distance", "receiver_group_elevation",
    "source_surface_elevation", "source_depth_below_surface", "receiver_datum_elevation", "source_datum_elevation",
    "source_water_depth", "receiver_water_depth", "elevation_depth_scalar", "coordinate_scalar", "source_coord_x",
    "source_coord_y", "group_coord_x", "group_coord_y", "coordinate_unit", "weathering_velocity",
    "subweathering_velocity", "source_uphole_time", "group_uphole_time", "source_static_correction",
    "receiver_static_correction", "total_static_applied", "lag_time_a", "lag_time_b", "delay_recording_time",
    "mute_time_start", "mute_time_end", "samples_per_trace", "sample_interval", "instrument_gain_type",
    "instrument_gain_const", "instrument_gain_initial", "correlated_data", "sweep_freq_start", "sweep_freq_end",
    "sweep_length", "sweep_type", "sweep_taper_start", "sweep_taper_end", "taper_type", "alias_filter_freq",
    "alias_filter_slope", "notch_filter_freq", "notch_filter_slope", "low_cut_freq", "high_cut_freq", "low_cut_slope",
    "high_cut_slope", "year_recorded", "day_of_year", "hour_of_day", "minute_of_hour", "second_of_minute",
    "time_basis_code", "trace_weighting_factor", "group_num_roll_switch", "group_num_first_trace",
    "group_num_last_trace", "gap_size", "taper_overtravel", "cdp_x", "cdp_y", "inline", "crossline", "shot_point",
    "shot_point_scalar", "trace_value_unit", "transduction_const_mantissa", "transduction_const_exponent",
    "transduction_unit", "device_trace_id", "times_scalar", "source_type_orientation", "source_energy_dir_mantissa",
    "source_energy_dir_exponent", "source_measurement_mantissa", "source_measurement_exponent",
    "source_measurement_unit",
]  # fmt: skip

# MDIO splits each of the two six-byte fields into two fields. All fields of MDIO are signed.
_PLACES = [
    *[(byte, kind.replace("u", "i")) for byte, kind in TRACE_FIELDS.values() if byte < 219],
    *[(219, "i4"), (223, "i2"), (225, "i4"), (229, "i2"), (231, "i2")],
]

HEADER_FIELDS: dict[str, tuple[int, str]] = dict(zip(_NAMES, _PLACES, strict=True))
"""Fields of `headers`: name, first byte in the trace header (from 1), and type."""

BINARY_FIELDS: dict[str, tuple[int, str]] = {
    "job_id": (3201, "i4"), "line_num": (3205, "i4"), "reel_num": (3209, "i4"), "data_traces_per_ensemble": (3213, "i2"),
    "aux_traces_per_ensemble": (3215, "i2"), "sample_interval": (3217, "i2"), "orig_sample_interval": (3219, "i2"),
    "samples_per_trace": (3221, "i2"), "orig_samples_per_trace": (3223, "i2"), "data_sample_format": (3225, "i2"),
    "ensemble_fold": (3227, "i2"), "trace_sorting_code": (3229, "i2"), "vertical_sum_code": (3231, "i2"),
    "sweep_freq_start": (3233, "i2"), "sweep_freq_end": (3235, "i2"), "sweep_length": (3237, "i2"),
    "sweep_type_code": (3239, "i2"), "sweep_trace_num": (3241, "i2"), "sweep_taper_start": (3243, "i2"),
    "sweep_taper_end": (3245, "i2"), "taper_type_code": (3247, "i2"), "correlated_data_code": (3249, "i2"),
    "binary_gain_code": (3251, "i2"), "amp_recovery_code": (3253, "i2"), "measurement_system_code": (3255, "i2"),
    "impulse_polarity_code": (3257, "i2"), "vibratory_polarity_code": (3259, "i2"),
    "fixed_length_trace_flag": (3503, "i2"), "num_extended_text_headers": (3505, "i2"),
    "segy_revision_major": (3501, "u1"), "segy_revision_minor": (3502, "u1"),
}  # fmt: skip
"""Fields of `segy_file_header.binaryHeader`: name, first byte in the file (from 1), and type."""

DIMENSIONS = {"shot": "shot_point"}
"""MDIO's names of Penstock's dimensions, if they differ."""

COORDINATES = {
    "source_x": "source_coord_x", "source_y": "source_coord_y", "receiver_x": "group_coord_x",
    "receiver_y": "group_coord_y",
}  # fmt: skip
"""MDIO's names of Penstock's coordinates, if they differ."""

TEMPLATES: dict[tuple[str, ...], tuple[str, str, str, tuple[int, ...]]] = {
    ("inline", "crossline"): ("PostStack3D", "3D", "stacked", (128, 128, 128)),
    ("cdp",): ("PostStack2D", "2D", "stacked", (1024, 1024)),
    ("inline", "crossline", "offset"): ("CdpOffsetGathers3D", "3D", "cdp", (8, 8, 32, 512)),
    ("cdp", "offset"): ("CdpOffsetGathers2D", "2D", "cdp", (16, 64, 1024)),
    ("shot_point", "channel"): ("StreamerShotGathers2D", "2D", "common_source", (16, 32, 2048)),
}
"""For each tuple of dimensions before the vertical dimension: name of MDIO's template, survey type, gather type and
chunks.
"""


def struct_dtype(data_type: Any) -> np.dtype[Any] | None:
    """Return the little-endian NumPy type of a structure or of raw bytes; None for any other type.

    Args:
        data_type: `data_type` of Zarr version 3 (`struct`, or `structured` of zarr-python before 3.2; `raw_bytes`), or
            `dtype` of version 2.
    """
    try:
        if isinstance(data_type, list):
            fields = [(name, kind) for name, kind in data_type]
            return None if any(str(kind).startswith(">") for _, kind in fields) else _packed(fields)
        if not isinstance(data_type, dict):
            return None
        settings = data_type["configuration"]
        if data_type["name"] == "raw_bytes":
            return np.dtype(f"V{int(settings['length_bytes'])}")
        if data_type["name"] not in ("struct", "structured"):
            return None
        pairs = [(each["name"], each["data_type"]) if isinstance(each, dict) else each for each in settings["fields"]]
        return _packed([(name, kind) for name, kind in pairs])
    except (KeyError, TypeError, ValueError):
        return None  # a nested structure or an unknown type, which the reader rejects


def _packed(fields: list[Any]) -> np.dtype[Any] | None:
    found = np.dtype([(str(name), np.dtype(kind)) for name, kind in fields])
    return found.newbyteorder("<") if found.itemsize else None


def standard_names(names: tuple[str, ...]) -> dict[str, str]:
    """Map MDIO's names of header fields to Penstock's names. Fields that are not in the standard keep MDIO's name."""
    ours = {byte: name for name, (byte, kind) in TRACE_FIELDS.items() if not kind.startswith("S")}
    return {name: ours.get(HEADER_FIELDS[name][0], name) if name in HEADER_FIELDS else name for name in names}
