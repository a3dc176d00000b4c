// SPDX-License-Identifier: Apache-2.0
//! NumPy's `.npy` format: parses the header (versions 1 to 3), and writes the array to a batch slot.
//!
//! Big-endian elements are swapped, and booleans become uint8. NumPy has no bfloat16. Arrays of structured elements,
//! strings, objects (pickles) or complex numbers are rejected, and the error states the reason. An array in Fortran
//! order with more than one dimension is accepted only if it is read as its transpose.

use penstock_types::{DType, Error, Result, TensorSpec, with_separators};

use crate::byteswap::swap_into;

/// Magic bytes at the start of every `.npy` file.
pub const MAGIC: &[u8; 6] = b"\x93NUMPY";
/// Maximum header size. NumPy's own limit is 10,000 characters. Headers of structured types may be longer, but those
/// types are rejected anyway.
const MAX_HEADER: usize = 64 << 10;
/// Maximum number of dimensions, as in NumPy.
const MAX_DIMENSIONS: usize = 64;

/// Parsed header of an array.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Header {
    /// Element type and shape. For an array in Fortran order, the shape is that of the transpose, which is stored in C
    /// order.
    pub spec: TensorSpec,
    /// True if the elements are big-endian.
    pub big_endian: bool,
    /// True if `spec.shape` is the reversed shape of the array.
    pub fortran_order: bool,
    /// True if the elements are booleans; their type in `spec` is uint8.
    pub boolean: bool,
    /// Offset of the first element in the file.
    pub data_offset: usize,
}

impl Header {
    /// Size of all elements in bytes.
    pub fn data_len(&self) -> Result<usize> {
        self.spec.size_bytes()
    }
}

/// Parses the header at the start of `bytes`, which holds the whole file or only its beginning; `place` names the file
/// in messages.
pub fn parse(bytes: &[u8], place: &str) -> Result<Header> {
    let corrupt = |problem: String| Error::corrupt(place, problem);
    let Some((magic, rest)) = bytes.split_first_chunk::<6>() else {
        return Err(corrupt(format!("is not a .npy file (it has {} bytes)", bytes.len())));
    };
    if magic != MAGIC {
        return Err(corrupt(format!("is not a .npy file (it begins `{}`)", magic.escape_ascii())));
    }
    let cut = || corrupt(format!("ends inside its .npy header (have {} bytes)", with_separators(bytes.len() as u64)));
    let (&[major, minor], rest) = rest.split_first_chunk::<2>().ok_or_else(cut)?;
    let (len, before) = match major {
        1 => (rest.first_chunk::<2>().map(|len| u64::from(u16::from_le_bytes(*len))).ok_or_else(cut)?, 10),
        2 | 3 => (rest.first_chunk::<4>().map(|len| u64::from(u32::from_le_bytes(*len))).ok_or_else(cut)?, 12),
        _ => {
            let what = format!("version {major}.{minor} of {place}");
            return Err(Error::Unsupported { what, by: "the .npy reader (versions 1 to 3)".to_owned() });
        }
    };
    if len > MAX_HEADER as u64 {
        return Err(corrupt(format!("has a .npy header of {} bytes (at most {MAX_HEADER})", with_separators(len))));
    }
    let data_offset = before + len as usize;
    let text = bytes.get(before..data_offset).ok_or_else(cut)?;
    let text = std::str::from_utf8(text).map_err(|_| corrupt("has a .npy header that is not text".to_owned()))?;
    let dict = Dict::parse(text).map_err(|problem| corrupt(format!("has a .npy header that {problem}")))?;
    let (descr, big_endian) = element(dict.descr, place)?;
    let mut shape = dict.shape;
    let fortran_order = dict.fortran_order && shape.len() > 1;
    if fortran_order {
        shape.reverse();
    }
    let spec = TensorSpec { dtype: descr, shape };
    spec.size_bytes().map_err(|_| corrupt(format!("has the shape {:?}, larger than the address space", spec.shape)))?;
    Ok(Header { spec, big_endian, fortran_order, boolean: dict.descr.ends_with("b1"), data_offset })
}

fn element(descr: &str, place: &str) -> Result<(DType, bool)> {
    let refused = |what: &str| {
        let what = format!("{what} (`{}`) of {place}", descr.escape_default());
        Error::Unsupported { what, by: "the .npy reader".to_owned() }
    };
    if descr.starts_with('[') {
        return Err(refused("the structured element type"));
    }
    match element_type(descr) {
        Some(found) => Ok(found),
        None if descr.trim_start_matches(['<', '>', '=', '|']).starts_with('O') => {
            Err(refused("the element type of pickled objects"))
        }
        None => Err(refused("the element type")),
    }
}

/// Parses NumPy's short type name; returns the element type, and whether it is big-endian. Booleans become uint8.
pub(crate) fn element_type(descr: &str) -> Option<(DType, bool)> {
    let (order, kind) = match descr.as_bytes().first() {
        Some(b'<' | b'>' | b'=' | b'|') => descr.split_at(1),
        _ => ("=", descr),
    };
    let dtype = match kind {
        "u1" | "b1" => DType::U8,
        "i1" => DType::I8,
        "u2" => DType::U16,
        "i2" => DType::I16,
        "u4" => DType::U32,
        "i4" => DType::I32,
        "u8" => DType::U64,
        "i8" => DType::I64,
        "f2" => DType::F16,
        "f4" => DType::F32,
        "f8" => DType::F64,
        _ => return None,
    };
    Some((dtype, order == ">" && dtype.size() > 1))
}

/// The three values of a header.
struct Dict<'a> {
    descr: &'a str,
    fortran_order: bool,
    shape: Vec<usize>,
}

impl<'a> Dict<'a> {
    /// Parses the Python literal that NumPy writes: `{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }`, with
    /// the keys in any order.
    fn parse(text: &'a str) -> Result<Self, String> {
        let mut rest = Literal(text.trim());
        let (mut descr, mut fortran_order, mut shape) = (None, None, None);
        rest.expect('{')?;
        while !rest.take('}') {
            let key = rest.string()?;
            rest.expect(':')?;
            match key {
                "descr" => descr = Some(rest.descr()?),
                "fortran_order" => fortran_order = Some(rest.boolean()?),
                "shape" => shape = Some(rest.shape()?),
                _ => return Err(format!("has the unknown key `{}`", key.escape_default())),
            }
            if !rest.take(',') {
                rest.expect('}')?;
                break;
            }
        }
        if !rest.0.trim_start().is_empty() {
            return Err("has text after its closing brace".to_owned());
        }
        match (descr, fortran_order, shape) {
            (Some(descr), Some(fortran_order), Some(shape)) => Ok(Self { descr, fortran_order, shape }),
            (None, ..) => Err("has no `descr`".to_owned()),
            (_, None, _) => Err("has no `fortran_order`".to_owned()),
            (_, _, None) => Err("has no `shape`".to_owned()),
        }
    }
}

/// Unparsed rest of a Python literal.
struct Literal<'a>(&'a str);

impl<'a> Literal<'a> {
    fn take(&mut self, mark: char) -> bool {
        let rest = self.0.trim_start();
        let taken = rest.strip_prefix(mark);
        self.0 = taken.unwrap_or(rest);
        taken.is_some()
    }

    fn expect(&mut self, mark: char) -> Result<(), String> {
        if self.take(mark) { Ok(()) } else { Err(format!("lacks a `{mark}`")) }
    }

    fn string(&mut self) -> Result<&'a str, String> {
        let rest = self.0.trim_start();
        let quote = rest.chars().next().filter(|quote| matches!(quote, '\'' | '"')).ok_or("has no string")?;
        let end = rest[1..].find(quote).ok_or("ends inside a string")?;
        self.0 = &rest[end + 2..];
        Ok(&rest[1..=end])
    }

    /// Parses the value of `descr`: a string, or the list of a structured type, which is returned as text.
    fn descr(&mut self) -> Result<&'a str, String> {
        let rest = self.0.trim_start();
        if !rest.starts_with('[') {
            return self.string();
        }
        let mut depth = 0usize;
        for (at, mark) in rest.char_indices() {
            match mark {
                '[' => depth += 1,
                ']' if depth == 1 => {
                    self.0 = &rest[at + 1..];
                    return Ok(&rest[..=at]);
                }
                ']' => depth -= 1,
                _ => {}
            }
        }
        Err("ends inside a list".to_owned())
    }

    fn boolean(&mut self) -> Result<bool, String> {
        let rest = self.0.trim_start();
        for (word, value) in [("True", true), ("False", false)] {
            if let Some(rest) = rest.strip_prefix(word) {
                self.0 = rest;
                return Ok(value);
            }
        }
        Err("has a `fortran_order` that is neither True nor False".to_owned())
    }

    fn shape(&mut self) -> Result<Vec<usize>, String> {
        let mut shape = Vec::new();
        self.expect('(')?;
        while !self.take(')') {
            let rest = self.0.trim_start();
            let digits = rest.len() - rest.trim_start_matches(|mark: char| mark.is_ascii_digit()).len();
            // NumPy under Python 2 wrote long integers: `3L`.
            let side = rest[..digits].parse().map_err(|_| "has a shape that is not a tuple of sizes")?;
            self.0 = rest[digits..].strip_prefix('L').unwrap_or(&rest[digits..]);
            if shape.len() == MAX_DIMENSIONS {
                return Err(format!("has a shape of more than {MAX_DIMENSIONS} dimensions"));
            }
            shape.push(side);
            if !self.take(',') {
                self.expect(')')?;
                break;
            }
        }
        Ok(shape)
    }
}

/// Reads the `.npy` file `bytes` into `out`, the array's batch slot, little-endian and in C order. The array must have
/// the type and shape of `spec`. `place` names the file in messages.
pub fn read_into(bytes: &[u8], spec: &TensorSpec, out: &mut [u8], place: &str) -> Result<()> {
    let header = parse(bytes, place)?;
    if header.fortran_order {
        let what = format!("Fortran order of {place} (reversed shape {:?})", header.spec.shape);
        return Err(Error::Unsupported { what, by: "the .npy reader".to_owned() });
    }
    if header.spec != *spec {
        let (have, want) = (&header.spec, spec);
        let text = format!("contains {} {:?} (want {} {:?})", have.dtype, have.shape, want.dtype, want.shape);
        return Err(Error::corrupt(place, text));
    }
    let len = header.data_len()?;
    if out.len() != len {
        return Err(Error::bug(format!("the slot for {place} has the wrong size ({} bytes)", out.len())));
    }
    let data = &bytes[header.data_offset..];
    if data.len() != len {
        let (want, have) = (with_separators(len as u64), with_separators(data.len() as u64));
        let problem = if data.len() < len { "ends inside its array" } else { "continues after its array" };
        return Err(Error::corrupt(place, format!("{problem} (want {want} bytes, have {have})")));
    }
    match header.big_endian {
        true => swap_into(data, out, spec.dtype.size()),
        false => out.copy_from_slice(data),
    }
    Ok(())
}
