package git

import (
	"bytes"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"

	"golang.org/x/crypto/ssh"
)

// Tenants choose the keys, and nothing can interrupt arithmetic with a key. A signature with an RSA key takes eight times as long when the
// key has twice as many bits: 0.1 s with 8,192 bits, an hour with 262,144. So larger keys are refused before they are used. The standard
// library bounds only the keys of certificates that a server presents, in the same way.
const (
	// maxKeySize bounds the text of a private key in bytes, because it takes long to parse a large one, too. There is room for twice the
	// size of a key with maxKeyBits.
	maxKeySize = 16 << 10
	// maxRounds bounds how often the passphrase of a private key is hashed, which takes 5 ms each time. The default of ssh-keygen is 24. Only
	// one key is decrypted at a time.
	maxRounds = 200
	// maxKeyBits bounds an RSA key that signs.
	maxKeyBits = 8192
	// maxCABits bounds an RSA key that verifies signatures, which takes less time than signing. crypto/x509 tries up to 100 certificates for
	// one server, so only maxLargeCAs may have keys that are larger than usual.
	maxCABits, usualCABits, maxLargeCAs = 16384, 4096, 5
	// maxCAs bounds the certificates of a CA. Systems trust about 150.
	maxCAs = 500
	// maxChainSize bounds the text of a client certificate with its intermediates in bytes.
	maxChainSize = 64 << 10
)

// isLarger reports whether the key is a public RSA key with more bits.
func isLarger(key any, bits int) bool {
	public, ok := key.(*rsa.PublicKey)
	return ok && public.N.BitLen() > bits
}

// checkKeySize checks the text of a private key before it is parsed.
func (r *repository) checkKeySize(key []byte) error {
	if len(key) > maxKeySize {
		return r.fail(InvalidCredentials, "the private key has more than %d bytes", maxKeySize)
	}
	return nil
}

// checkRounds checks the text of an encrypted private key. Only the format of OpenSSH has a number of rounds.
func (r *repository) checkRounds(key []byte) error {
	block, _ := pem.Decode(key)
	if block == nil {
		return nil // The key is refused when it is parsed.
	}
	encoded, isOpenSSH := bytes.CutPrefix(block.Bytes, []byte("openssh-key-v1\x00"))
	var header struct {
		Cipher, KDF, Options string
		Rest                 []byte `ssh:"rest"`
	}
	var options struct {
		Salt   string
		Rounds uint32
	}
	if !isOpenSSH || ssh.Unmarshal(encoded, &header) != nil || ssh.Unmarshal([]byte(header.Options), &options) != nil {
		return nil
	}
	if options.Rounds > maxRounds {
		return r.fail(InvalidCredentials, "the private key is encrypted with more than %d rounds: ssh-keygen -p -a 100 changes that", maxRounds)
	}
	return nil
}

// checkKeyBits checks the public part of a private key.
func (r *repository) checkKeyBits(public any) error {
	if isLarger(public, maxKeyBits) {
		return r.fail(InvalidCredentials, "the private key has more than %d bits: use a smaller one, or one of type Ed25519 or ECDSA", maxKeyBits)
	}
	return nil
}

// checkSigner checks a key that was parsed for ssh.
func (r *repository) checkSigner(signer ssh.Signer) error {
	public, ok := signer.PublicKey().(ssh.CryptoPublicKey)
	if !ok {
		return nil
	}
	return r.checkKeyBits(public.CryptoPublicKey())
}

// clientCertificate returns the client certificate of the remote, with its key.
func (r *repository) clientCertificate() (tls.Certificate, error) {
	if err := r.checkKeySize(r.remote.ClientKey); err != nil {
		return tls.Certificate{}, err
	}
	if len(r.remote.ClientCert) > maxChainSize {
		return tls.Certificate{}, r.fail(InvalidCredentials, "the client certificate has more than %d bytes", maxChainSize)
	}
	certificate, err := tls.X509KeyPair(r.remote.ClientCert, r.remote.ClientKey)
	if err != nil {
		return tls.Certificate{}, r.fail(InvalidCredentials,
			"the client certificate and its key cannot be used together: both are needed, in the PEM format")
	}
	return certificate, r.checkKeyBits(certificate.Leaf.PublicKey)
}

// certificateAuthorities returns the authorities that the remote trusts.
func (r *repository) certificateAuthorities() (*x509.CertPool, error) {
	pool, count, large := x509.NewCertPool(), 0, 0
	if r.remote.TrustsSystem {
		if system, err := x509.SystemCertPool(); err == nil {
			pool = system
		}
	}
	for block, rest := pem.Decode(r.remote.CA); block != nil; block, rest = pem.Decode(rest) {
		// As everywhere in Go, what is not a certificate is ignored.
		certificate, err := x509.ParseCertificate(block.Bytes)
		if err != nil || block.Type != "CERTIFICATE" {
			continue
		}
		if count++; isLarger(certificate.PublicKey, usualCABits) {
			large++
		}
		switch {
		case count > maxCAs:
			return nil, r.fail(InvalidCredentials, "the CA has more than %d certificates", maxCAs)
		case isLarger(certificate.PublicKey, maxCABits):
			return nil, r.fail(InvalidCredentials, "the CA has a certificate whose key has more than %d bits", maxCABits)
		case large > maxLargeCAs:
			return nil, r.fail(InvalidCredentials, "the CA has more than %d certificates whose keys have more than %d bits", maxLargeCAs, usualCABits)
		}
		pool.AddCert(certificate)
	}
	if count == 0 {
		return nil, r.fail(InvalidCredentials, "the CA has no certificate in the PEM format")
	}
	return pool, nil
}
