// SPDX-License-Identifier: Apache-2.0
//! JSON arrays of numbers. The numbers are converted directly from the text to the type of a field. Both `[1, 2]` and
//! `[1, 2.5]` can therefore be read as floats.

use penstock_types::DType;

use super::put_text;

/// A JSON array of numbers or booleans, an array of such arrays of equal length, or one boolean.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Numbers<'a> {
    text: &'a str,
    shape: Vec<usize>,
}

impl<'a> Numbers<'a> {
    /// Finds the shape of `text`, which must be valid JSON. Returns `None` if `text` is not an array of numbers or
    /// booleans, or an array of such arrays of equal length.
    pub fn parse(text: &'a str) -> Option<Self> {
        let (mut counts, mut shape, mut is_inside) = (Vec::<usize>::new(), Vec::<Option<usize>>::new(), false);
        // Number of levels of arrays around the numbers. It must be the same for all numbers.
        let mut depth = None;
        for byte in text.bytes() {
            let was_inside = std::mem::take(&mut is_inside);
            match byte {
                b'[' => {
                    if let Some(count) = counts.last_mut() {
                        *count += 1;
                    }
                    counts.push(0);
                }
                b']' => {
                    let count = counts.pop()?;
                    let at = counts.len();
                    shape.resize(shape.len().max(at + 1), None);
                    if shape[at].is_some_and(|known| known != count) {
                        return None;
                    }
                    shape[at] = Some(count);
                }
                b',' | b' ' | b'\t' | b'\n' | b'\r' => {}
                b'0'..=b'9' | b'-' | b'+' | b'.' | b'e' | b'E' | b't' | b'r' | b'u' | b'f' | b'a' | b'l' | b's' => {
                    is_inside = true;
                    if !was_inside {
                        *counts.last_mut()? += 1;
                        if *depth.get_or_insert(counts.len()) != counts.len() {
                            return None;
                        }
                    }
                }
                _ => return None,
            }
        }
        let shape = shape.into_iter().collect::<Option<Vec<usize>>>()?;
        let is_regular = !shape.is_empty() && depth.is_none_or(|depth| depth == shape.len());
        is_regular.then_some(Self { text, shape })
    }

    /// One boolean, of shape `[]`.
    pub fn boolean(value: bool) -> Self {
        Self { text: if value { "true" } else { "false" }, shape: Vec::new() }
    }

    /// The stored text.
    pub fn text(&self) -> &'a str {
        self.text
    }

    /// Length of the array, followed by the lengths of the arrays inside it.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Number of elements at the innermost level.
    pub fn elements(&self) -> usize {
        self.shape.iter().product()
    }

    /// True if the inner arrays have the lengths `inner`. The comparison starts at the innermost level, and ignores
    /// levels that only one of the two shapes has. A list can be split into rows, and rows can be joined, but the
    /// length of rows cannot change.
    pub fn has_rows_of(&self, inner: &[usize]) -> bool {
        self.shape.iter().skip(1).rev().zip(inner.iter().rev()).all(|(own, wanted)| own == wanted)
    }

    fn each(&self) -> impl Iterator<Item = &'a str> {
        self.text.split(['[', ']', ',', ' ', '\t', '\n', '\r']).filter(|number| !number.is_empty())
    }

    /// The first of the types bool, int64, uint64 and float64 that can represent all numbers.
    pub fn dtype(&self) -> DType {
        let all = |is: fn(&str) -> bool| self.each().all(is);
        let is_bool = |text: &str| matches!(text, "true" | "false");
        if self.elements() > 0 && all(is_bool) {
            DType::Bool
        } else if all(|text| text.parse::<i64>().is_ok()) {
            DType::I64
        } else if all(|text| text.parse::<u64>().is_ok()) {
            DType::U64
        } else {
            DType::F64
        }
    }

    /// Writes the numbers into `out`, which has exactly the required size.
    pub fn write(&self, dtype: DType, out: &mut [u8]) -> Result<(), String> {
        for (text, slot) in self.each().zip(out.chunks_exact_mut(dtype.size())) {
            let number = match text {
                "true" => "1",
                "false" => "0",
                text => text,
            };
            if !put_text(dtype, number, slot) {
                return Err(format!("{text} is not a valid {dtype}"));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_the_shape_and_type_of_the_array() {
        let parsed = |text| Numbers::parse(text).map(|numbers| (numbers.shape().to_vec(), numbers.dtype()));
        assert_eq!(parsed("[1, -2,3]"), Some((vec![3], DType::I64)));
        assert_eq!(parsed("[[1, 2.5], [3, 4e2]]"), Some((vec![2, 2], DType::F64)));
        assert_eq!(parsed("[18446744073709551615]"), Some((vec![1], DType::U64)));
        assert_eq!(parsed("[true,false]"), Some((vec![2], DType::Bool)));
        assert_eq!(parsed("[[],[]]"), Some((vec![2, 0], DType::I64)));
        for irregular in ["[1, [2]]", "[[1], [2, 3]]", "[[], [1]]", "[[],1]", "[null]", "[\"1\"]", "[{}]", "1"] {
            assert_eq!(parsed(irregular), None, "{irregular}");
        }
    }

    #[test]
    fn rows_are_joined_or_split_but_not_made_longer_or_shorter() {
        let has_rows_of = |text, inner: &[usize]| Numbers::parse(text).unwrap().has_rows_of(inner);
        assert!(has_rows_of("[[1, 2, 3], [4, 5, 6]]", &[3]));
        assert!(has_rows_of("[[1, 2, 3], [4, 5, 6]]", &[]));
        assert!(has_rows_of("[[1, 2, 3], [4, 5, 6]]", &[2, 3]));
        assert!(has_rows_of("[1, 2, 3, 4, 5, 6]", &[2]));
        assert!(!has_rows_of("[[1, 2, 3], [4, 5, 6]]", &[2]));
    }

    #[test]
    fn numbers_are_written_as_the_requested_type_or_refused() {
        let numbers = Numbers::parse("[1, 2.5, true]").unwrap();
        let mut out = vec![0; 12];
        numbers.write(DType::F32, &mut out).unwrap();
        assert_eq!(out, [1f32, 2.5, 1.0].map(f32::to_le_bytes).concat());
        assert_eq!(numbers.write(DType::I32, &mut out).unwrap_err(), "2.5 is not a valid int32");
        assert_eq!(
            Numbers::parse("[300]").unwrap().write(DType::U8, &mut out).unwrap_err(),
            "300 is not a valid uint8"
        );
    }
}
