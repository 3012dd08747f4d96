//! Signatures by Standard Webhooks: `v1,` and the base64 of HMAC-SHA256 over `id.timestamp.body`.

use std::fmt;

use base64::{
    Engine as _,
    alphabet::STANDARD as ALPHABET,
    engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig, general_purpose::STANDARD},
};
use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;

use crate::model::Secret;

/// Secrets are pasted with and without padding.
const LENIENT: GeneralPurpose = GeneralPurpose::new(
    &ALPHABET,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// Signs with each of its keys.
pub(super) struct Signer(Vec<Hmac<Sha256>>);

impl fmt::Debug for Signer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Signer({} keys)", self.0.len())
    }
}

impl Signer {
    /// Reads keys: base64 behind `whsec_`, or any text as it is.
    pub(super) fn new(secrets: &[Secret]) -> Result<Self, String> {
        let mut keys = Vec::with_capacity(secrets.len());
        for (at, secret) in secrets.iter().enumerate() {
            let text = secret.expose();
            let bytes = match text.strip_prefix("whsec_") {
                Some(encoded) => LENIENT
                    .decode(encoded)
                    .map_err(|_| format!("signing secret {}: what follows `whsec_` is not base64", at + 1))?,
                None => text.as_bytes().to_vec(),
            };
            if bytes.is_empty() {
                return Err(format!("signing secret {} is empty", at + 1));
            }
            keys.push(
                Hmac::new_from_slice(&bytes)
                    .map_err(|error| format!("signing secret {}: {error}", at + 1))?,
            );
        }
        Ok(Self(keys))
    }

    /// The value of `webhook-signature`: one signature a key, separated by spaces. None without a key.
    pub(super) fn sign(&self, id: &str, timestamp: u64, body: &[u8]) -> Option<String> {
        let one = |key: &Hmac<Sha256>| {
            let mut mac = key.clone();
            mac.update(format!("{id}.{timestamp}.").as_bytes());
            mac.update(body);
            format!("v1,{}", STANDARD.encode(mac.finalize().into_bytes()))
        };
        let signatures: Vec<String> = self.0.iter().map(one).collect();
        (!signatures.is_empty()).then(|| signatures.join(" "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn signer(secrets: &[&str]) -> Result<Signer, String> {
        Signer::new(&secrets.iter().map(|text| Secret::new(*text)).collect::<Vec<_>>())
    }

    /// The example of the Standard Webhooks specification, "Signature scheme".
    #[test]
    fn c077_the_example_of_the_specification() {
        let signer = signer(&["whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"]).unwrap();
        let signature =
            signer.sign("msg_p5jXN8AQM9LWM0D4loKWxJek", 1_614_265_330, br#"{"test": 2432232314}"#);
        assert_eq!(signature.unwrap(), "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
    }

    #[test]
    fn c077_two_keys_give_two_signatures() {
        let both = signer(&["new key", "old key"]).unwrap().sign("a", 1, b"x").unwrap();
        let (new, old) = both.split_once(' ').unwrap();
        assert_eq!(signer(&["new key"]).unwrap().sign("a", 1, b"x").unwrap(), new);
        assert_eq!(signer(&["old key"]).unwrap().sign("a", 1, b"x").unwrap(), old);
        assert_eq!(signer(&[]).unwrap().sign("a", 1, b"x"), None);
    }

    #[test]
    fn c096_bad_keys_are_refused_without_being_shown() {
        for bad in ["whsec_marker!!", "", "whsec_"] {
            let error = signer(&["fine", bad]).unwrap_err();
            assert!(error.contains("secret 2") && !error.contains("marker"), "{error}");
        }
        assert_eq!(format!("{:?}", signer(&["marker"]).unwrap()), "Signer(1 keys)");
        assert!(signer(&["whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSwQQ"]).is_ok(), "padding left out");
    }
}
