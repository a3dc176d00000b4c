// SPDX-License-Identifier: Apache-2.0
//! Where Hadoop's own configuration is, and who asks.

use std::collections::HashMap;
use std::path::PathBuf;

/// How to reach HDFS beyond its URL.
#[derive(Debug, Clone, Default)]
pub struct HdfsSettings {
    /// The folder of `core-site.xml` and `hdfs-site.xml`: name services, Kerberos, wire protection.
    pub conf_dir: Option<PathBuf>,
    /// The user to act as, where the cluster takes a user's word.
    pub user: Option<String>,
    /// It names no user and hdfs-native would take the process's, who is a stranger there.
    pub(crate) is_strange: bool,
}

impl HdfsSettings {
    /// Reads `HADOOP_CONF_DIR`, `HADOOP_HOME` (its `etc/hadoop`) and `HADOOP_USER_NAME`, as every Hadoop client does.
    pub(crate) fn from_env(variables: &HashMap<String, String>) -> Self {
        let text = |name: &str| variables.get(name).filter(|value| !value.is_empty());
        let home = || Some(PathBuf::from(text("HADOOP_HOME")?).join("etc/hadoop"));
        Self {
            conf_dir: text("HADOOP_CONF_DIR").map(PathBuf::from).or_else(home),
            user: text("HADOOP_USER_NAME").cloned(),
            is_strange: false,
        }
    }

    /// The same as another tenant's, in a process of these variables: hdfs-native asks those for a user by itself.
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
