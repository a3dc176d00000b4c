// SPDX-License-Identifier: Apache-2.0
//! Converts errors of Hadoop and of the library `hdfs-native` to Penstock errors.

use hdfs_native::HdfsError;
use penstock_types::Error;

/// Maximum number of characters of a server's message in an error.
const QUOTED: usize = 300;

/// Returns the first line of a server's message without control characters. The other lines are a Java stack trace.
pub(super) fn shown(text: &str) -> String {
    let line = text.lines().next().unwrap_or_default();
    line.chars().filter(|c| !c.is_control()).take(QUOTED).collect()
}

/// Returns the error for a response that made the library `hdfs-native` panic.
pub(super) fn odd(place: &str) -> Error {
    Error::Server { place: place.to_owned(), status: 0, reason: "malformed response".to_owned() }
}

/// Converts the error of an operation on `place`. `root` is the URL of the cluster.
pub(super) fn of(place: &str, root: &str, error: &HdfsError) -> Error {
    let place = place.to_owned();
    let refused = |reason: &str| Error::KeyRefused {
        key: place.strip_prefix(root).unwrap_or(&place).to_owned(),
        place: root.to_owned(),
        reason: reason.to_owned(),
    };
    match error {
        HdfsError::FileNotFound(_) | HdfsError::IsADirectoryError(_) => Error::NotFound { place },
        HdfsError::AlreadyExists(_) => {
            Error::Precondition { place, reason: "an object with this key already exists".to_owned() }
        }
        HdfsError::RPCError(class, text) | HdfsError::FatalRPCError(class, text) => {
            let reason = shown(text);
            match class.rsplit(['.', '$']).next().unwrap_or_default() {
                "FileNotFoundException" => Error::NotFound { place },
                "FileAlreadyExistsException" => {
                    Error::Precondition { place, reason: "a file with this name already exists".to_owned() }
                }
                // Even if permissions are disabled, the permission check returns this error.
                "AccessControlException" if reason.ends_with("(is not a directory)") => {
                    refused("a file exists where its folder should be")
                }
                "ParentNotDirectoryException" => refused("a file exists where its folder should be"),
                "PathComponentTooLongException" => refused("a name in the path is too long for this HDFS cluster"),
                "InvalidPathException" => refused("HDFS does not accept this path"),
                "AccessControlException" | "AuthorizationException" | "InvalidToken" | "SaslException" => {
                    Error::Denied { place, reason }
                }
                "DSQuotaExceededException" | "NSQuotaExceededException" | "QuotaByStorageTypeExceededException" => {
                    Error::NoSpace { place, need: 0, free: 0 }
                }
                class => Error::Server { place, status: 0, reason: format!("{class}: {reason}") },
            }
        }
        HdfsError::SASLError(_) | HdfsError::GSSAPIError(..) | HdfsError::NoSASLMechanism => {
            Error::Denied { place, reason: shown(&error.to_string()) }
        }
        HdfsError::IOError(error) => Error::Unreachable { place: root.to_owned(), reason: shown(&error.to_string()) },
        // Hadoop's message lists every replica, so replace it with a short one.
        HdfsError::DataTransferError(text) if text.starts_with("All DataNodes failed") => {
            Error::Unreachable { place, reason: "no DataNode returned the data".to_owned() }
        }
        HdfsError::DataTransferError(text) | HdfsError::OperationFailed(text) | HdfsError::BlocksNotFound(text) => {
            Error::Server { place, status: 0, reason: shown(text) }
        }
        HdfsError::ChecksumError => Error::corrupt(place, "does not match its checksum in HDFS"),
        HdfsError::InvalidPath(text) => refused(&shown(text)),
        HdfsError::UnsupportedFeature(text) | HdfsError::UnsupportedErasureCodingPolicy(text) => {
            Error::Unsupported { what: format!("{place} ({})", shown(text)), by: "this build".to_owned() }
        }
        HdfsError::InvalidArgument(_) | HdfsError::UrlParseError(_) | HdfsError::XmlParseError(_) => {
            Error::config(root, shown(&error.to_string()))
        }
        HdfsError::ErasureCodingError(_)
        | HdfsError::InvalidRPCResponse(_)
        | HdfsError::InternalError(_)
        | HdfsError::TrashNotEnabled => Error::Server { place, status: 0, reason: shown(&error.to_string()) },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_java_exceptions_become_what_a_caller_can_act_on() {
        let rpc = |class: &str| {
            let error = HdfsError::RPCError(class.to_owned(), "said\n\tat org.apache.Stack".to_owned());
            of("hdfs://n:1/a/b", "hdfs://n:1/", &error)
        };
        for (class, code) in [
            ("java.io.FileNotFoundException", "not-found"),
            ("org.apache.hadoop.security.AccessControlException", "denied"),
            ("org.apache.hadoop.fs.ParentNotDirectoryException", "key"),
            ("org.apache.hadoop.hdfs.protocol.FSLimitException$PathComponentTooLongException", "key"),
            ("org.apache.hadoop.hdfs.protocol.DSQuotaExceededException", "no-space"),
            ("org.apache.hadoop.ipc.StandbyException", "server"),
            ("org.apache.hadoop.hdfs.server.namenode.SafeModeException", "server"),
            ("", "server"),
        ] {
            let error = rpc(class);
            assert_eq!(error.code(), code, "{class}: {error}");
            assert!(!error.to_string().contains("Stack"), "{error}");
        }
        assert!(rpc("org.apache.hadoop.hdfs.server.namenode.SafeModeException").retryable());
        assert!(rpc("org.apache.hadoop.fs.ParentNotDirectoryException").to_string().starts_with("key `a/b` "));
    }
}
