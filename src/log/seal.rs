//! Payloads sealed at rest: AES-256-GCM under the broker's key.
//!
//! A sealed payload is a JSON object with three members, so that data of other Queen brokers can be
//! read: `encrypted` (ciphertext), `iv` (16 bytes, of which the first 12 are the nonce), `authTag`
//! (16 bytes), each in padded base64 (control-plane section 16). Old keys are kept for reading.

use aes_gcm::aead::{AeadInPlace, KeyInit};
use aes_gcm::{Aes256Gcm, Nonce, Tag};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};

const IV_BYTES: usize = 16;
const NONCE_BYTES: usize = 12;
const TAG_BYTES: usize = 16;

/// The key that seals, and those that only open.
#[derive(Clone, Default)]
pub struct Seal {
    current: Option<Aes256Gcm>,
    old: Vec<Aes256Gcm>,
}

impl std::fmt::Debug for Seal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Keys are never shown.
        let old = self.old.len();
        f.debug_struct("Seal").field("current", &self.current.is_some()).field("old", &old).finish()
    }
}

#[derive(Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
struct Envelope {
    encrypted: String,
    iv: String,
    auth_tag: String,
}

/// Why a text is no key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an encryption key is 64 hexadecimal digits (32 bytes), not {0} characters")]
pub struct KeyError(usize);

fn cipher(hex_key: &str) -> Result<Aes256Gcm, KeyError> {
    let mut key = [0; 32];
    match hex::decode_to_slice(hex_key.trim(), &mut key) {
        Ok(()) => Ok(Aes256Gcm::new(&key.into())),
        Err(_) => Err(KeyError(hex_key.trim().chars().count())),
    }
}

impl Seal {
    /// Keys as 64 hexadecimal digits: the one that seals, and older ones that only open.
    ///
    /// # Errors
    /// [`KeyError`] for a text that is no key.
    pub fn new(current: Option<&str>, old: &[&str]) -> Result<Self, KeyError> {
        Ok(Self {
            current: current.map(cipher).transpose()?,
            old: old.iter().map(|key| cipher(key)).collect::<Result<_, _>>()?,
        })
    }

    /// Whether payloads can be sealed.
    #[must_use]
    pub fn seals(&self) -> bool {
        self.current.is_some()
    }

    /// The sealed form of a payload; `None` without a key, or when the cipher fails.
    #[must_use]
    pub fn seal(&self, payload: &str) -> Option<String> {
        let cipher = self.current.as_ref()?;
        let iv: [u8; IV_BYTES] = rand::random();
        let mut text = payload.as_bytes().to_vec();
        let nonce = Nonce::from_slice(&iv[..NONCE_BYTES]);
        let tag = cipher.encrypt_in_place_detached(nonce, b"", &mut text).ok()?;
        let envelope = Envelope {
            encrypted: STANDARD.encode(&text),
            iv: STANDARD.encode(iv),
            auth_tag: STANDARD.encode(tag),
        };
        serde_json::to_string(&envelope).ok()
    }

    /// The payload inside a sealed one; anything else, and what no key opens, stays as it is.
    #[must_use]
    pub fn open(&self, payload: String) -> String {
        // Looked at only where there is a key and the text can be an envelope.
        if (self.current.is_none() && self.old.is_empty()) || !payload.contains("\"authTag\"") {
            return payload;
        }
        self.opened(&payload).unwrap_or(payload)
    }

    fn opened(&self, payload: &str) -> Option<String> {
        let envelope: Envelope = serde_json::from_str(payload).ok()?;
        let text = STANDARD.decode(envelope.encrypted).ok()?;
        let iv = STANDARD.decode(envelope.iv).ok()?;
        let tag = STANDARD.decode(envelope.auth_tag).ok()?;
        let nonce = iv.get(..NONCE_BYTES).filter(|_| iv.len() == IV_BYTES)?;
        if tag.len() != TAG_BYTES {
            return None;
        }
        self.current.iter().chain(&self.old).find_map(|cipher| {
            let mut text = text.clone();
            cipher
                .decrypt_in_place_detached(
                    Nonce::from_slice(nonce),
                    b"",
                    &mut text,
                    Tag::from_slice(&tag),
                )
                .ok()?;
            String::from_utf8(text).ok()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: &str = "0000000000000000000000000000000000000000000000000000000000000001";
    const B: &str = "0000000000000000000000000000000000000000000000000000000000000002";

    #[test]
    fn what_was_sealed_opens_also_under_a_key_that_became_old() {
        let a = Seal::new(Some(A), &[]).expect("a key");
        let sealed = a.seal(r#"{"n": 1.0}"#).expect("sealed");
        assert!(!sealed.contains("1.0"), "{sealed}");
        assert_ne!(sealed, a.seal(r#"{"n": 1.0}"#).expect("sealed"), "a fresh nonce each time");
        assert_eq!(a.open(sealed.clone()), r#"{"n": 1.0}"#);
        let rotated = Seal::new(Some(B), &[A]).expect("keys");
        assert_eq!(rotated.open(sealed.clone()), r#"{"n": 1.0}"#);
        let other = Seal::new(Some(B), &[]).expect("a key");
        assert_eq!(other.open(sealed.clone()), sealed, "undecryptable stays as stored");
        assert_eq!(Seal::default().open(sealed.clone()), sealed);
    }

    #[test]
    fn damaged_envelopes_stay_as_stored() {
        let seal = Seal::new(Some(A), &[]).expect("a key");
        let sealed = seal.seal("1").expect("sealed");
        let mut envelope: serde_json::Value = serde_json::from_str(&sealed).expect("JSON");
        envelope["authTag"] = STANDARD.encode([0; 16]).into();
        assert_eq!(seal.open(envelope.to_string()), envelope.to_string());
        envelope["iv"] = "AA==".into();
        assert_eq!(seal.open(envelope.to_string()), envelope.to_string());
        assert_eq!(seal.open(r#"{"authTag":1}"#.to_owned()), r#"{"authTag":1}"#);
    }

    #[test]
    fn keys_are_checked_and_never_shown() {
        assert_eq!(Seal::new(Some("abc"), &[]).expect_err("no key"), KeyError(3));
        assert!(Seal::new(Some(&"x".repeat(64)), &[]).is_err());
        let shown = format!("{:?}", Seal::new(Some(A), &[B]).expect("keys"));
        assert_eq!(shown, "Seal { current: true, old: 1 }");
    }
}
