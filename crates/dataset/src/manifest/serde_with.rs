// SPDX-License-Identifier: Apache-2.0
//! Serde conversions of keys, codecs and transforms, for the JSON lines of manifests and stage journals.

use serde::{Deserialize, Deserializer};

/// JSON form of a key: `"key": "text"`, or `"key_hex": "61ff"` if the key is not UTF-8.
pub mod key_text {
    use penstock_types::Key;
    use serde::ser::SerializeMap;
    use serde::{Deserialize, Deserializer, Serializer};

    /// Writes a key as JSON.
    pub fn serialize<S: Serializer>(key: &Key, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(1))?;
        match key.as_str() {
            Some(text) => map.serialize_entry("key", text)?,
            None => {
                let hex: String = key.as_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
                map.serialize_entry("key_hex", &hex)?;
            }
        }
        map.end()
    }

    /// Reads a key from JSON.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Key, D::Error> {
        #[derive(Deserialize)]
        struct Text {
            key: Option<String>,
            key_hex: Option<String>,
        }
        let text = Text::deserialize(deserializer)?;
        match (text.key, text.key_hex) {
            (Some(key), None) => Ok(Key::new(key.into_bytes())),
            (None, Some(hex)) => {
                let bad = || serde::de::Error::custom(format!("`{hex}` is not valid hexadecimal"));
                if !hex.is_ascii() || hex.len() % 2 != 0 {
                    return Err(bad());
                }
                let bytes: Result<Vec<u8>, _> =
                    (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16)).collect();
                Ok(Key::new(bytes.map_err(|_| bad())?))
            }
            _ => Err(serde::de::Error::custom("either `key` or `key_hex` is required")),
        }
    }
}

/// JSON form of a codec: its name.
pub mod codec_text {
    use penstock_codec::Codec;
    use serde::{Deserialize, Deserializer, Serializer};

    /// Writes a codec as JSON.
    pub fn serialize<S: Serializer>(codec: &Codec, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(codec.name())
    }

    /// Reads a codec from JSON.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Codec, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

/// Reads a transform from JSON, converting the spelling of version 1.
pub fn transform_text<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    Ok(Option::<String>::deserialize(deserializer)?.map(normal_transform))
}

/// Converts a transform to the spelling of this version: version 1 wrote `inflate` for `decompress`.
pub(super) fn normal_transform(transform: String) -> String {
    transform.replace("inflate", "decompress")
}
