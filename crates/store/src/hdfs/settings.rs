// SPDX-License-Identifier: Apache-2.0
//! HDFS settings: the location of Hadoop's configuration, and the user who sends the requests.

use std::collections::HashMap;
use std::path::PathBuf;

/// Connection settings of HDFS that are not part of the URL.
#[derive(Debug, Clone, Default)]
pub struct HdfsSettings {
    /// Folder of `core-site.xml` and `hdfs-site.xml`, which configure name services, Kerberos and encryption.
    pub conf_dir: Option<PathBuf>,
    /// User name for requests to clusters without authentication.
    pub user: Option<String>,
    /// True if the settings of a tenant (see `scoped_settings`) name no user, but the environment of the process does.
    /// hdfs-native would then send the tenant's requests as the user of the process.
    pub(crate) is_strange: bool,
}

impl HdfsSettings {
    /// Reads `HADOOP_CONF_DIR`, `HADOOP_HOME` (for its `etc/hadoop`) and `HADOOP_USER_NAME`, as other clients do.
    pub(crate) fn from_env(variables: &HashMap<String, String>) -> Self {
        let text = |name: &str| variables.get(name).filter(|value| !value.is_empty());
        let home = || Some(PathBuf::from(text("HADOOP_HOME")?).join("etc/hadoop"));
        Self {
            conf_dir: text("HADOOP_CONF_DIR").map(PathBuf::from).or_else(home),
            user: text("HADOOP_USER_NAME").cloned(),
            is_strange: false,
        }
    }

    /// Adapts the settings of a tenant. `process` contains the variables of the process, from which hdfs-native itself
    /// reads a user name.
    pub(crate) fn beside(self, process: &HashMap<String, String>) -> Self {
        let names = ["HADOOP_USER_NAME", "HADOOP_PROXY_USER"];
        let is_named = names.iter().any(|name| process.get(*name).is_some_and(|value| !value.is_empty()));
        Self { is_strange: self.user.is_none() && is_named, ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_settings_conf_dir_wins_over_home_and_empty_is_unset() {
        let of = |pairs: &[(&str, &str)]| {
            let pairs = pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
            HdfsSettings::from_env(&pairs.collect())
        };
        assert_eq!(of(&[("HADOOP_HOME", "/h")]).conf_dir, Some("/h/etc/hadoop".into()));
        assert_eq!(of(&[("HADOOP_HOME", "/h"), ("HADOOP_CONF_DIR", "/c")]).conf_dir, Some("/c".into()));
        assert_eq!(of(&[("HADOOP_USER_NAME", "")]).user, None);
    }
}
