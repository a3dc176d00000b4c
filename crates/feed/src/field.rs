// SPDX-License-Identifier: Apache-2.0
//! Fields of a batch: a name, the source value in a record, and its kind.
//!
//! Owns the JSON document that Python writes. Reads nothing itself.

use penstock_record::image::{Crop, ImageSpec, Layout};
use penstock_types::{DType, Error, Result, TensorSpec};
use serde::{Deserialize, Serialize};

/// A field of a sample.
#[derive(Debug, Clone, PartialEq)]
pub struct Field {
    /// Its name in batches.
    pub name: String,
    /// Values of a record that the field may be read from; the first that exists is used. Empty: the value with the
    /// field's name.
    pub of: Vec<String>,
    /// Conversion of the part.
    pub kind: Kind,
    /// Default for a record that lacks the value: for tensors one element, little-endian, repeated; for bytes the
    /// content. Other kinds have no default.
    pub default: Option<Box<[u8]>>,
}

/// Conversion of a part.
#[derive(Debug, Clone, PartialEq)]
pub enum Kind {
    /// Elements of a type and shape that are the same in every sample.
    Tensor(TensorSpec),
    /// Any number of items per sample, each of this type and shape: values and offsets.
    Ragged(TensorSpec),
    /// The stored bytes.
    Bytes,
    /// Any number of byte strings, one by one.
    BytesList,
    /// An image, decoded, cropped and resized.
    Image(ImageSpec),
}

/// A field, as Python writes it.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct FieldDocument {
    name: String,
    kind: String,
    #[serde(default)]
    of: Vec<String>,
    #[serde(default)]
    dtype: Option<String>,
    #[serde(default)]
    shape: Vec<usize>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    image: Option<ImageDocument>,
    /// Hexadecimal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    default: Option<String>,
}

/// Specification of an image field, as Python writes it.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ImageDocument {
    height: u32,
    width: u32,
    crop: String,
    resize: u32,
    area: (f64, f64),
    ratio: (f64, f64),
    flip: f64,
    layout: String,
    mean: [f32; 3],
    std: [f32; 3],
    orient: bool,
    max_pixels: u64,
    #[serde(default)]
    exact: bool,
}

impl ImageDocument {
    fn spec(&self, dtype: DType) -> Result<ImageSpec> {
        let crop = match self.crop.as_str() {
            "none" => Crop::None,
            "center" => Crop::Center { resize: self.resize },
            "random" => Crop::Random { area: self.area, ratio: self.ratio },
            other => return Err(Error::config("image", format!("crop `{other}` is not one of random, center, none"))),
        };
        let layout = match self.layout.as_str() {
            "HWC" => Layout::Hwc,
            "CHW" => Layout::Chw,
            other => return Err(Error::config("image", format!("layout `{other}` is neither HWC nor CHW"))),
        };
        let spec = ImageSpec {
            height: self.height,
            width: self.width,
            crop,
            flip: self.flip,
            dtype,
            layout,
            mean: self.mean,
            std: self.std,
            orient: self.orient,
            max_pixels: self.max_pixels,
            exact: self.exact,
        };
        spec.check()?;
        Ok(spec)
    }

    fn of(spec: &ImageSpec) -> Self {
        let (crop, resize, area, ratio) = match spec.crop {
            Crop::None => ("none", 0, (0.0, 0.0), (0.0, 0.0)),
            Crop::Center { resize } => ("center", resize, (0.0, 0.0), (0.0, 0.0)),
            Crop::Random { area, ratio } => ("random", 0, area, ratio),
        };
        Self {
            height: spec.height,
            width: spec.width,
            crop: crop.to_owned(),
            resize,
            area,
            ratio,
            flip: spec.flip,
            layout: if spec.layout == Layout::Chw { "CHW" } else { "HWC" }.to_owned(),
            mean: spec.mean,
            std: spec.std,
            orient: spec.orient,
            max_pixels: spec.max_pixels,
            exact: spec.exact,
        }
    }
}

impl Field {
    /// A field of fixed tensors, read from the value with its name.
    pub fn tensor(name: &str, dtype: DType, shape: &[usize]) -> Self {
        Self::of_kind(name, Kind::Tensor(TensorSpec { dtype, shape: shape.to_vec() }))
    }

    /// A field of this kind without a default, read from the value with its name.
    pub fn of_kind(name: &str, kind: Kind) -> Self {
        Self { name: name.to_owned(), of: Vec::new(), kind, default: None }
    }

    /// Type and shape, if they are the same in every sample.
    pub fn fixed(&self) -> Option<TensorSpec> {
        match &self.kind {
            Kind::Tensor(spec) => Some(spec.clone()),
            Kind::Image(spec) => Some(spec.tensor()),
            Kind::Ragged(_) | Kind::Bytes | Kind::BytesList => None,
        }
    }

    /// The item of a field of variable length.
    pub fn item(&self) -> Option<TensorSpec> {
        match &self.kind {
            Kind::Tensor(_) | Kind::Image(_) => None,
            Kind::Ragged(spec) => Some(spec.clone()),
            Kind::Bytes | Kind::BytesList => Some(TensorSpec { dtype: DType::U8, shape: Vec::new() }),
        }
    }

    /// The names of the parts that it may be read from.
    pub fn parts(&self) -> &[String] {
        if self.of.is_empty() { std::slice::from_ref(&self.name) } else { &self.of }
    }

    /// Parses the fields that Python writes, as JSON.
    pub fn from_json(json: &str) -> Result<Vec<Self>> {
        let document: Vec<FieldDocument> = serde_json::from_str(json)
            .map_err(|error| Error::config("fields", format!("they cannot be parsed: {error}")))?;
        document.into_iter().map(Self::from_document).collect()
    }

    fn from_document(document: FieldDocument) -> Result<Self> {
        let dtype = document.dtype.as_deref().map(str::parse::<DType>).transpose()?;
        let spec = || {
            let dtype = dtype.ok_or_else(|| Error::config("fields", format!("{} has no dtype", document.name)))?;
            let spec = TensorSpec { dtype, shape: document.shape.clone() };
            spec.size_bytes()?;
            Ok::<_, Error>(spec)
        };
        let kind = match document.kind.as_str() {
            "tensor" => Kind::Tensor(spec()?),
            "ragged" => Kind::Ragged(spec()?),
            "bytes" => Kind::Bytes,
            "bytes_list" => Kind::BytesList,
            "image" => {
                let image = document.image.as_ref();
                let image = image.ok_or_else(|| Error::config("fields", format!("{} has no image", document.name)))?;
                Kind::Image(image.spec(dtype.unwrap_or(DType::U8))?)
            }
            other => return Err(Error::config("fields", format!("{} has the unknown kind `{other}`", document.name))),
        };
        let default = document.default.as_deref().map(|text| default_of(&document.name, &kind, text)).transpose()?;
        Ok(Self { name: document.name, of: document.of, kind, default })
    }

    /// Fields as the JSON that [`Field::from_json`] reads.
    pub fn to_json(fields: &[Self]) -> Result<String> {
        let document: Vec<FieldDocument> = fields.iter().map(Self::document).collect();
        serde_json::to_string(&document).map_err(|error| Error::bug(format!("fields cannot be serialised: {error}")))
    }

    fn document(&self) -> FieldDocument {
        let (kind, spec, image) = match &self.kind {
            Kind::Tensor(spec) => ("tensor", Some(spec.clone()), None),
            Kind::Ragged(spec) => ("ragged", Some(spec.clone()), None),
            Kind::Bytes => ("bytes", None, None),
            Kind::BytesList => ("bytes_list", None, None),
            Kind::Image(image) => ("image", Some(image.tensor()), Some(ImageDocument::of(image))),
        };
        FieldDocument {
            name: self.name.clone(),
            kind: kind.to_owned(),
            of: self.of.clone(),
            dtype: spec.as_ref().map(|spec| spec.dtype.name().to_owned()),
            shape: spec.map(|spec| spec.shape).unwrap_or_default(),
            image,
            default: self.default.as_ref().map(|bytes| bytes.iter().map(|byte| format!("{byte:02x}")).collect()),
        }
    }
}

/// Parses the default in `text`, in hexadecimal: an element of a tensor, or any bytes.
fn default_of(name: &str, kind: &Kind, text: &str) -> Result<Box<[u8]>> {
    let digits = text.as_bytes().as_chunks::<2>();
    let byte = |pair: &[u8; 2]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    let bytes: Option<Box<[u8]>> = digits.0.iter().map(byte).collect();
    let fits = |bytes: &[u8]| match kind {
        Kind::Tensor(spec) => bytes.len() == spec.dtype.size(),
        Kind::Bytes => true,
        Kind::Ragged(_) | Kind::Image(_) | Kind::BytesList => false,
    };
    let bytes = bytes.filter(|bytes| digits.1.is_empty() && fits(bytes));
    bytes.ok_or_else(|| Error::config("fields", format!("{name} has a default that is not a value of its kind")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_round_trip_and_refuse_what_they_do_not_know() {
        let fields = vec![
            Field::tensor("x", DType::I16, &[3, 2]),
            Field { default: Some([0xff, 1].into()), ..Field::tensor("missing", DType::I16, &[]) },
            Field {
                of: vec!["ids".into(), "input_ids".into()],
                ..Field::of_kind("tokens", Kind::Ragged(TensorSpec { dtype: DType::I64, shape: vec![] }))
            },
            Field { default: Some([].into()), ..Field::of_kind("raw", Kind::Bytes) },
            Field::of_kind("words", Kind::BytesList),
            Field {
                of: vec!["jpg".into()],
                ..Field::of_kind(
                    "image",
                    Kind::Image(ImageSpec { crop: Crop::RANDOM, flip: 0.5, ..ImageSpec::new(224, 224) }),
                )
            },
        ];
        assert_eq!(Field::from_json(&Field::to_json(&fields).unwrap()).unwrap(), fields);
        assert_eq!((fields[0].parts(), fields[2].parts().len()), (&["x".to_owned()][..], 2));
        let int16 =
            |default: &str| format!(r#"[{{"name":"x","kind":"tensor","dtype":"int16","default":"{default}"}}]"#);
        for bad in [
            r#"[{"name":"x","kind":"tensor"}]"#,
            r#"[{"name":"x","kind":"sound"}]"#,
            r#"[{"name":"x","kind":"ragged","dtype":"int16","default":"0000"}]"#,
            "{}",
            &int16("00"),
            &int16("00000"),
            &int16("+1zz"),
        ] {
            assert_eq!(Field::from_json(bad).unwrap_err().code(), "config");
        }
    }
}
