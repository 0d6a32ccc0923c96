package config

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/pulumi/pulumi/sdk/v3/go/common/resource/config"

	"github.com/stack-controller/stack-controller/internal/file"
)

const (
	// PassphraseVariable has the passphrase, as the CLI expects it.
	PassphraseVariable = "PULUMI_CONFIG_PASSPHRASE"
	// PassphraseFileVariable names a file with the passphrase.
	PassphraseFileVariable = "PULUMI_CONFIG_PASSPHRASE_FILE"
	// maxPassphraseFile bounds the file, in bytes.
	maxPassphraseFile = 64 << 10
	// maxCrypters bounds the derived keys that are kept in memory.
	maxCrypters = 32
)

// Encrypter encrypts secret values.
type Encrypter = config.Encrypter

// ErrWrongPassphrase reports that the passphrase does not fit the salt. The text is that of the CLI.
var ErrWrongPassphrase = errors.New("incorrect passphrase")

// Passphrase returns the passphrase that the CLI would use. An empty one counts when it is set.
func Passphrase(env map[string]string) (phrase string, set bool, err error) {
	if phrase, set = env[PassphraseVariable]; set {
		return phrase, true, nil
	}
	path := env[PassphraseFileVariable]
	if path == "" {
		return "", false, nil
	}
	content, err := file.Read(path, maxPassphraseFile)
	if err != nil {
		return "", false, fmt.Errorf("read the passphrase file %s: %w", path, file.WithoutPath(err))
	}
	return strings.TrimSpace(string(content)), true, nil
}

// Crypters keeps the keys that were derived from passphrases: each derivation costs 0.2 s of CPU time. They are in memory
// only, and found by a digest of passphrase and salt. The zero value has none.
type Crypters struct {
	mu    sync.Mutex
	known map[[sha256.Size]byte]config.Crypter
}

// Open returns the crypter of a stack whose salt is known, or ErrWrongPassphrase. The salt is the one in the stack's configuration file or
// state: "v1:", the salt proper, ":", and the encrypted word "pulumi", which shows whether the passphrase is right.
func (c *Crypters) Open(ctx context.Context, phrase, salt string) (config.Crypter, error) {
	key := sha256.Sum256([]byte(phrase + "\x00" + salt))
	c.mu.Lock()
	defer c.mu.Unlock()
	if crypter := c.known[key]; crypter != nil {
		return crypter, nil
	}
	version, rest, _ := strings.Cut(salt, ":")
	encoded, encrypted, found := strings.Cut(rest, ":")
	raw, err := base64.StdEncoding.DecodeString(encoded)
	if err != nil || !found || version != "v1" {
		return nil, errors.New("the encryption salt is not one of a passphrase")
	}
	crypter := config.NewSymmetricCrypterFromPassphrase(phrase, raw)
	if word, err := crypter.DecryptValue(ctx, encrypted); err != nil || word != "pulumi" {
		return nil, ErrWrongPassphrase
	}
	c.keep(key, crypter)
	return crypter, nil
}

// Create returns a new salt for the passphrase, and its crypter.
func (c *Crypters) Create(ctx context.Context, phrase string) (salt string, crypter config.Crypter, err error) {
	raw := make([]byte, 8)
	_, _ = rand.Read(raw) // it never fails
	crypter = config.NewSymmetricCrypterFromPassphrase(phrase, raw)
	word, err := crypter.EncryptValue(ctx, "pulumi")
	if err != nil {
		return "", nil, fmt.Errorf("make an encryption salt: %w", err)
	}
	salt = "v1:" + base64.StdEncoding.EncodeToString(raw) + ":" + word
	c.mu.Lock()
	defer c.mu.Unlock()
	c.keep(sha256.Sum256([]byte(phrase+"\x00"+salt)), crypter)
	return salt, crypter, nil
}

func (c *Crypters) keep(key [sha256.Size]byte, crypter config.Crypter) {
	if c.known == nil || len(c.known) >= maxCrypters {
		c.known = map[[sha256.Size]byte]config.Crypter{}
	}
	c.known[key] = crypter
}
