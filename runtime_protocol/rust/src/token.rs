//! Where the service token comes from, and how a new one is noticed: a rotated token must not need a restart.

use std::path::PathBuf;
use std::sync::{Arc, RwLock};

use crate::Secret;

/// The service token. One that lies in a file is read again when the server refuses it, so that a rotation costs no request.
#[derive(Clone)]
pub struct TokenSource {
    file: Option<PathBuf>,
    current: Arc<RwLock<Secret>>,
}

/// Why there is no token.
#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    /// The environment variable is not set, or is empty.
    #[error("the environment variable {0} holds no service token: make one with `manage.py issue_service_token NAME`")]
    NotSet(String),
    /// The file cannot be read, or is empty.
    #[error("the token file {path} cannot be used: {reason}")]
    File {
        /// Which file.
        path: PathBuf,
        /// What the system says of it.
        reason: String,
    },
}

impl TokenSource {
    /// A token that does not change while the program runs.
    #[must_use]
    pub fn fixed(token: impl Into<String>) -> Self {
        Self { file: None, current: Arc::new(RwLock::new(Secret::from(token.into()))) }
    }

    /// The token in an environment variable.
    ///
    /// # Errors
    /// [`TokenError::NotSet`]
    pub fn from_env(name: &str) -> Result<Self, TokenError> {
        match std::env::var(name) {
            Ok(token) if !token.trim().is_empty() => Ok(Self::fixed(token.trim())),
            _ => Err(TokenError::NotSet(name.to_owned())),
        }
    }

    /// The token in a file, white space around it ignored. The file is read again after a 401: replace it to rotate.
    ///
    /// # Errors
    /// [`TokenError::File`]
    pub fn from_file(path: impl Into<PathBuf>) -> Result<Self, TokenError> {
        let path = path.into();
        let source = Self::fixed(read(&path)?);
        Ok(Self { file: Some(path), ..source })
    }

    pub(crate) fn current(&self) -> Secret {
        // A poisoned lock holds a whole token all the same.
        self.current.read().unwrap_or_else(std::sync::PoisonError::into_inner).clone()
    }

    /// Look whether there is another token than the one that was refused.
    pub(crate) fn replaced(&self, refused: &Secret) -> bool {
        if self.current().expose() != refused.expose() {
            return true; // another call has found it
        }
        let Some(path) = &self.file else { return false };
        match read(path) {
            Ok(token) if token != refused.expose() => {
                *self.current.write().unwrap_or_else(std::sync::PoisonError::into_inner) = token.into();
                tracing::info!("a new service token was read from its file");
                true
            }
            Ok(_) => false,
            Err(error) => {
                tracing::error!("{error}");
                false
            }
        }
    }
}

fn read(path: &PathBuf) -> Result<String, TokenError> {
    let trouble = |reason: String| TokenError::File { path: path.clone(), reason };
    let text = std::fs::read_to_string(path).map_err(|error| trouble(error.to_string()))?;
    match text.trim() {
        "" => Err(trouble("it is empty".to_owned())),
        token => Ok(token.to_owned()),
    }
}

impl std::fmt::Debug for TokenSource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TokenSource").field("file", &self.file).field("current", &"[secret]").finish()
    }
}
