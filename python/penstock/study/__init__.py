# SPDX-License-Identifier: Apache-2.0
"""Runs published experiments again, and reports inverted, predicted and measured values beside the published figures.

A study is a folder with `spec.toml` (sizes and parts), `expected.toml` (published figures) and a module for each part.
`spec` reads them, `run` runs the parts, `result` defines the stored results, `table` computes the columns, `markdown`
and `page` write the reports. The studies themselves are in `studies/` of the repository, outside this package.
"""
