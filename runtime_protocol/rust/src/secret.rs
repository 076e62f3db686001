//! Text that never prints: `Debug` shows a mask, there is no `Display`, and memory is wiped when it is dropped.

use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, Serialize, Serializer};

/// A key or a service token. It cannot be printed or serialized; [`Secret::expose`] is the one way to its text.
#[derive(Clone, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(transparent)]
pub struct Secret(#[cfg_attr(test, schemars(with = "String"))] SecretString);

impl Secret {
    /// The text itself: for the header of one request, and for nothing that is kept.
    #[must_use]
    pub fn expose(&self) -> &str {
        self.0.expose_secret()
    }
}

impl From<String> for Secret {
    fn from(text: String) -> Self {
        Self(text.into())
    }
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("[secret]")
    }
}

/// The secret of one attempt, which every call of the attempt carries. Unlike a [`Secret`] it can be serialized: it stands in requests.
#[derive(Clone, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(transparent)]
pub struct LockToken(Secret);

impl LockToken {
    /// The text itself: for requests of its attempt.
    #[must_use]
    pub fn expose(&self) -> &str {
        self.0.expose()
    }
}

impl From<String> for LockToken {
    fn from(text: String) -> Self {
        Self(text.into())
    }
}

impl std::fmt::Debug for LockToken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("[secret]")
    }
}

impl PartialEq for LockToken {
    fn eq(&self, other: &Self) -> bool {
        self.expose() == other.expose()
    }
}

impl Eq for LockToken {}

impl Serialize for LockToken {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.expose())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_show_a_mask_only() {
        let shown = format!("{:?} {:?}", Secret::from("sk-canary".to_owned()), LockToken::from("lock-canary".to_owned()));
        assert_eq!(shown, "[secret] [secret]");
    }
}
