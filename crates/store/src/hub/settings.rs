// SPDX-License-Identifier: Apache-2.0
//! Settings of the Hugging Face Hub, from the environment variables of the Hub's own library.

use std::collections::HashMap;
use std::fmt;
use std::path::PathBuf;

use penstock_types::{Error, Result};

/// Endpoint if `HF_ENDPOINT` is not set.
pub(super) const ENDPOINT: &str = "https://huggingface.co";

/// Maximum size of a token file in bytes.
const MAX_TOKEN_BYTES: u64 = 4096;

/// Connection settings of the Hugging Face Hub. Its `Debug` output contains no token.
#[derive(Clone, Default)]
pub struct HubSettings {
    /// Endpoint to use instead of the public Hub.
    pub endpoint: Option<String>,
    /// Allows plain HTTP to other machines.
    pub allows_http: bool,
    pub(crate) token: Option<String>,
    pub(crate) token_file: Option<PathBuf>,
}

impl fmt::Debug for HubSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HubSettings")
            .field("endpoint", &self.endpoint.as_deref().map(|url| url.rsplit('@').next()))
            .field("allows_http", &self.allows_http)
            .finish_non_exhaustive()
    }
}

impl HubSettings {
    /// Reads `HF_ENDPOINT`, `HF_TOKEN` (or `HUGGING_FACE_HUB_TOKEN`) and the path of the token file. This path is
    /// `HF_TOKEN_PATH`, or else the file `token` in the folder `HF_HOME`. If `HF_HOME` is not set, the folder is
    /// `huggingface` in the cache folder. `HF_HUB_DISABLE_IMPLICIT_TOKEN` disables the token. Source:
    /// <https://huggingface.co/docs/huggingface_hub/package_reference/environment_variables>.
    pub(crate) fn from_env(variables: &HashMap<String, String>) -> Self {
        let text = |name: &str| variables.get(name).map(|value| value.trim()).filter(|value| !value.is_empty());
        let is_off = text("HF_HUB_DISABLE_IMPLICIT_TOKEN")
            .is_some_and(|value| matches!(value.to_ascii_lowercase().as_str(), "1" | "true" | "yes" | "on"));
        let home = || {
            let cache = text("XDG_CACHE_HOME").map(PathBuf::from);
            let cache = cache.or_else(|| Some(PathBuf::from(text("HOME")?).join(".cache")))?;
            Some(cache.join("huggingface"))
        };
        let file = text("HF_TOKEN_PATH").map(PathBuf::from);
        let file = file.or_else(|| Some(text("HF_HOME").map(PathBuf::from).or_else(home)?.join("token")));
        Self {
            endpoint: text("HF_ENDPOINT").map(str::to_owned),
            allows_http: false,
            token: text("HF_TOKEN").or(text("HUGGING_FACE_HUB_TOKEN")).filter(|_| !is_off).map(str::to_owned),
            token_file: file.filter(|_| !is_off),
        }
    }

    /// Returns the token from the environment. If the environment has no token, returns the token from the token file.
    /// Returns `None` if both are missing.
    pub(super) fn token(&self) -> Result<Option<String>> {
        if self.token.is_some() {
            return Ok(self.token.clone());
        }
        let Some(path) = &self.token_file else { return Ok(None) };
        match std::fs::metadata(path) {
            Ok(found) if found.is_file() && found.len() <= MAX_TOKEN_BYTES => {}
            Ok(_) => return Err(Error::config("HF_TOKEN_PATH", format!("{} is not a token file", path.display()))),
            Err(_) => return Ok(None),
        }
        let read = std::fs::read_to_string(path);
        let token = read.map_err(|error| Error::from_io(path.display().to_string(), &error))?;
        Ok(Some(token.trim().to_owned()).filter(|token| !token.is_empty()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(pairs: &[(&str, &str)]) -> HubSettings {
        HubSettings::from_env(&pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect())
    }

    #[test]
    fn test_hub_token_comes_from_the_variable_else_from_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let home = dir.path().to_str().unwrap();
        std::fs::write(dir.path().join("token"), "hf_file\n").unwrap();
        assert_eq!(of(&[("HF_HOME", home)]).token().unwrap().as_deref(), Some("hf_file"));
        let both = [("HF_HOME", home), ("HF_TOKEN", " hf_secret\n")];
        assert_eq!(of(&both).token().unwrap().as_deref(), Some("hf_secret"));
        assert!(!format!("{:?}", of(&both)).contains("secret"));
        let off = [both[0], both[1], ("HF_HUB_DISABLE_IMPLICIT_TOKEN", "1")];
        assert_eq!(of(&off).token().unwrap(), None);
        assert_eq!(of(&[("HOME", home)]).token().unwrap(), None);
    }
}
