// SPDX-License-Identifier: Apache-2.0
//! Reads `~/.aws/config` and `~/.aws/credentials`, and finds the credential source of a profile. Each renewal reads the
//! files again, because other tools may change them during a job.

use std::collections::HashMap;
use std::path::PathBuf;

use reqsign_core::{Context, Error, Result};

/// Settings of one section, with names in lower case.
pub(super) type Section = HashMap<String, String>;

/// Maximum number of bytes that are read from a settings file.
const MAX_BYTES: usize = 4 << 20;

/// Content of both files. A missing file counts as empty, as in all AWS tools.
#[derive(Debug, Default)]
pub(super) struct Files {
    config: HashMap<String, Section>,
    credentials: HashMap<String, Section>,
}

/// Credential source of a profile.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ProfileSource {
    Keys { id: String, secret: String, token: Option<String> },
    Process { command: String },
    Sso(Sso),
    WebIdentity { role: String, session: Option<String>, token_file: String },
    Role { role: String, session: Option<String>, external: Option<String>, from: RoleSource },
}

/// Source of the credentials that assume a role.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum RoleSource {
    Profile(String),
    /// One of `Environment`, `EcsContainer` and `Ec2InstanceMetadata`.
    Place(String),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Sso {
    /// Name under which the token is cached: the session name or, in the older configuration format, the start URL.
    pub(super) cached_as: String,
    pub(super) region: String,
    pub(super) account: String,
    pub(super) role: String,
    /// True if the profile uses an sso-session. Only the tokens of sessions can be renewed.
    pub(super) is_session: bool,
}

/// Parses the sections of an AWS settings file. Skips indented lines, which are nested settings.
fn parse(text: &str) -> HashMap<String, Section> {
    let mut sections: HashMap<String, Section> = HashMap::new();
    let mut current: Option<String> = None;
    for line in text.lines().filter(|line| !line.starts_with([' ', '\t', '#', ';'])) {
        let line = line.trim_end();
        if let Some(rest) = line.strip_prefix('[') {
            let name = rest.split(']').next().unwrap_or_default();
            let words: Vec<&str> = name.split_whitespace().map(|word| word.trim_matches(['"', '\''])).collect();
            let name = words.join(" ");
            sections.entry(name.clone()).or_default();
            current = Some(name);
        } else if let (Some(name), Some((key, value))) = (&current, line.split_once('=')) {
            // A comment may follow a value. It begins with ` #` or ` ;`.
            let value = value.split([' ', '\t']).collect::<Vec<_>>().join(" ");
            let value = value.split(" #").next().unwrap_or_default().split(" ;").next().unwrap_or_default().trim();
            if let (Some(section), false) = (sections.get_mut(name), value.is_empty()) {
                section.insert(key.trim().to_ascii_lowercase(), value.to_owned());
            }
        }
    }
    sections
}

impl Files {
    pub(super) async fn read(context: &Context) -> Self {
        let config = Self::one(context, "AWS_CONFIG_FILE", ".aws/config").await;
        let credentials = Self::one(context, "AWS_SHARED_CREDENTIALS_FILE", ".aws/credentials").await;
        Self::of(&config, &credentials)
    }

    async fn one(context: &Context, variable: &str, place: &str) -> String {
        let path = match context.env_var(variable) {
            Some(path) => context.expand_home_dir(&path).map_or_else(|| PathBuf::from(&path), PathBuf::from),
            None => match context.home_dir() {
                Some(home) => home.join(place),
                None => return String::new(),
            },
        };
        let bytes = context.file_read(&path.to_string_lossy()).await.unwrap_or_default();
        String::from_utf8_lossy(&bytes[..bytes.len().min(MAX_BYTES)]).into_owned()
    }

    pub(super) fn of(config: &str, credentials: &str) -> Self {
        Self { config: parse(config), credentials: parse(credentials) }
    }

    fn config_of(&self, profile: &str) -> Option<&Section> {
        let named = self.config.get(&format!("profile {profile}"));
        named.or_else(|| self.config.get(profile).filter(|_| profile == "default"))
    }

    pub(super) fn knows(&self, profile: &str) -> bool {
        self.config_of(profile).is_some() || self.credentials.contains_key(profile)
    }

    /// Returns the credential source of a profile. Returns `None` if it has no source: a profile may set only a region.
    ///
    /// `is_source` is true if the keys of the profile assume the role of the same profile. The role is then ignored.
    pub(super) fn means(&self, profile: &str, is_source: bool) -> Result<Option<ProfileSource>> {
        let empty = Section::new();
        let config = self.config_of(profile).unwrap_or(&empty);
        let credentials = self.credentials.get(profile).unwrap_or(&empty);
        let get = |name: &str| config.get(name).or_else(|| credentials.get(name)).cloned();
        let bad = |text: String| Error::config_invalid(text);
        if let (Some(role), false) = (get("role_arn"), is_source) {
            let session = get("role_session_name");
            if let Some(token_file) = get("web_identity_token_file") {
                return Ok(Some(ProfileSource::WebIdentity { role, session, token_file }));
            }
            if get("mfa_serial").is_some() {
                return Err(bad(format!(
                    "profile {profile} requires an MFA code, which a job cannot enter; use the keys of \
                     `aws sts get-session-token`, or a credential_process"
                )));
            }
            let from = match (get("source_profile"), get("credential_source")) {
                (Some(source), None) => RoleSource::Profile(source),
                (None, Some(place)) => RoleSource::Place(place),
                _ => {
                    return Err(bad(format!(
                        "profile {profile} has a role_arn but not exactly one of source_profile, credential_source and \
                         web_identity_token_file"
                    )));
                }
            };
            return Ok(Some(ProfileSource::Role { role, session, external: get("external_id"), from }));
        }
        if get("sso_account_id").is_some() || get("sso_role_name").is_some() {
            return self.sso(profile, &get).map(|sso| Some(ProfileSource::Sso(sso)));
        }
        let keys = |section: &Section| {
            let token = section.get("aws_session_token").cloned();
            let id = section.get("aws_access_key_id")?.clone();
            Some(ProfileSource::Keys { id, secret: section.get("aws_secret_access_key")?.clone(), token })
        };
        let process = || Some(ProfileSource::Process { command: get("credential_process")? });
        Ok(keys(credentials).or_else(process).or_else(|| keys(config)))
    }

    fn sso(&self, profile: &str, get: &dyn Fn(&str) -> Option<String>) -> Result<Sso> {
        let session = get("sso_session");
        let shared = session.as_ref().map(|name| {
            self.config.get(&format!("sso-session {name}")).ok_or_else(|| {
                Error::config_invalid(format!("profile {profile} names an sso-session that does not exist"))
            })
        });
        let shared = shared.transpose()?;
        let need = |name: &str| {
            shared
                .and_then(|section| section.get(name).cloned())
                .or_else(|| get(name))
                .ok_or_else(|| Error::config_invalid(format!("profile {profile} uses SSO but has no {name}")))
        };
        let start = need("sso_start_url")?;
        Ok(Sso {
            region: need("sso_region")?,
            account: need("sso_account_id")?,
            role: need("sso_role_name")?,
            is_session: session.is_some(),
            cached_as: session.unwrap_or(start),
        })
    }
}

/// Splits a command line into words like a POSIX shell, but without expansions.
pub(super) fn words(line: &str) -> Result<Vec<String>> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut quote: Option<char> = None;
    let mut letters = line.chars();
    while let Some(letter) = letters.next() {
        match (quote, letter) {
            (Some(open), letter) if letter == open => quote = None,
            (Some('\''), letter) => word.get_or_insert_default().push(letter),
            (Some(_), '\\') => {
                let next = letters.next().unwrap_or('\\');
                if !matches!(next, '"' | '\\' | '$' | '`') {
                    word.get_or_insert_default().push('\\');
                }
                word.get_or_insert_default().push(next);
            }
            (Some(_), letter) => word.get_or_insert_default().push(letter),
            (None, '\'' | '"') => {
                quote = Some(letter);
                word.get_or_insert_default();
            }
            (None, '\\') => word.get_or_insert_default().extend(letters.next()),
            (None, letter) if letter.is_whitespace() => words.extend(word.take()),
            (None, letter) => word.get_or_insert_default().push(letter),
        }
    }
    if quote.is_some() {
        return Err(Error::config_invalid("credential_process has an unclosed quote"));
    }
    words.extend(word);
    Ok(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONFIG: &str = "[default]\nregion = x\n[profile old]\nsso_start_url = https://a\nsso_region = r\n\
        sso_account_id = 1\nsso_role_name = n\n[sso-session lab]\nsso_start_url=https://b\nsso_region=r2\n\
        [profile new]\nsso_session = lab\nsso_account_id = 2\nsso_role_name = m\n[profile role]\nrole_arn = arn:r\n\
        source_profile = keys\nexternal_id = e\n[profile mfa]\nrole_arn = a\nsource_profile = keys\nmfa_serial = s\n\
        [profile web]\nrole_arn = a\nweb_identity_token_file = /t\n[profile odd]\nrole_arn = a\n\
        [profile \"two words\"]\ncredential_process = p # why\ns3 =\n  role_arn = nested\n";
    const KEYS: &str = "[keys]\naws_access_key_id = AK\naws_secret_access_key = SK\n";

    #[test]
    fn test_profile_settings_select_credentials() {
        let files = Files::of(CONFIG, KEYS);
        let means = |profile| files.means(profile, false).unwrap();
        assert_eq!(means("default"), None);
        assert_eq!(means("keys"), Some(ProfileSource::Keys { id: "AK".into(), secret: "SK".into(), token: None }));
        let Some(ProfileSource::Sso(old)) = means("old") else { panic!() };
        let Some(ProfileSource::Sso(new)) = means("new") else { panic!() };
        assert_eq!((old.cached_as.as_str(), old.is_session), ("https://a", false));
        assert_eq!((new.cached_as.as_str(), new.is_session, new.region.as_str()), ("lab", true, "r2"));
        assert!(
            matches!(means("role"), Some(ProfileSource::Role { from: RoleSource::Profile(source), .. }) if source == "keys")
        );
        assert!(matches!(means("web"), Some(ProfileSource::WebIdentity { token_file, .. }) if token_file == "/t"));
        assert_eq!(means("two words"), Some(ProfileSource::Process { command: "p".into() }));
        assert!(files.means("mfa", false).unwrap_err().to_string().contains("MFA"));
        assert!(files.means("odd", false).is_err());
        assert!(files.knows("keys") && files.knows("web") && !files.knows("nobody"));
    }

    #[test]
    fn test_words_split_as_a_shell_does() {
        let want = |line: &str, want: &[&str]| assert_eq!(words(line).unwrap(), want, "{line}");
        want(r#"/opt/a\ b --x "y z" 'q "r' "" t"#, &["/opt/a b", "--x", "y z", "q \"r", "", "t"]);
        want("  ", &[]);
        want(r#""a\"b\n""#, &["a\"b\\n"]);
        assert!(words("a 'b").is_err());
    }

    proptest::proptest! {
        #[test]
        fn prop_parse_and_words_survive_anything(text in ".{0,300}") {
            let files = Files::of(&text, &text);
            let _ = files.means("default", false);
            let _ = words(&text);
        }
    }
}
