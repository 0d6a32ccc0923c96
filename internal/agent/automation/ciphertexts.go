package automation

import (
	"context"
	"crypto/sha256"
	"fmt"
	"strings"
	"sync"

	"github.com/blang/semver"

	"github.com/stack-controller/stack-controller/internal/agent/proto"
)

// rawConfigVersion is the first CLI that can read a value with a newline at its end from stdin.
var rawConfigVersion = semver.MustParse("3.247.0")

// maxCiphertexts bounds the encrypted values that are kept in memory.
const maxCiphertexts = 1000

// ciphertexts keeps what the CLI encrypted: a value that has not changed needs no process in the next operation. They are in
// memory only, and found by a digest of the value and of all that says how it is encrypted.
type ciphertexts struct {
	mu    sync.Mutex
	known map[[sha256.Size]byte]string
}

func newCiphertexts() *ciphertexts {
	return &ciphertexts{known: map[[sha256.Size]byte]string{}}
}

func ciphertextKey(settings cryptoSettings, item configItem) [sha256.Size]byte {
	return sha256.Sum256(fmt.Appendf(nil, "%q %q %q %q", settings.SecretsProvider, settings.EncryptedKey, item.key, item.value))
}

func (c *ciphertexts) get(settings cryptoSettings, item configItem) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.known[ciphertextKey(settings, item)]
}

func (c *ciphertexts) put(settings cryptoSettings, item configItem, ciphertext string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.known) >= maxCiphertexts {
		clear(c.known)
	}
	c.known[ciphertextKey(settings, item)] = ciphertext
}

// setKnownCiphertext sets a secret value that the CLI has encrypted before, and tells whether there was one.
func (o *operation) setKnownCiphertext(file *stackFile, settings cryptoSettings, item configItem) bool {
	ciphertext := o.runner.ciphertexts.get(settings, item)
	if ciphertext == "" || item.path || !settings.usesService() {
		return false
	}
	key, err := parseConfigKey(item.key, item.path, o.project.name)
	return err == nil && file.set(key, o.project.name, secureNode(ciphertext)) == nil
}

// rememberCiphertexts keeps what the CLI made of the items, in the configuration that it wrote.
func (o *operation) rememberCiphertexts(items []configItem) {
	if len(items) == 0 {
		return
	}
	content, err := readBounded(o.stack.configFile(), maxProjectSize)
	if err != nil {
		return
	}
	file, err := parseStackFile(content)
	if err != nil {
		return
	}
	settings, err := file.crypto()
	if err != nil || !settings.usesService() {
		return
	}
	values, err := file.config()
	if err != nil {
		return
	}
	for _, item := range items {
		key, err := parseConfigKey(item.key, item.path, o.project.name)
		if err != nil || item.path {
			continue
		}
		if node := valueOf(values, key.String()); node != nil && isSecure(node) {
			o.runner.ciphertexts.put(settings, item, node.Content[1].Value)
		}
	}
}

// encryptByCLI sets secret values whose key only the CLI can use.
func (o *operation) encryptByCLI(ctx context.Context, items []configItem) error {
	for _, item := range items {
		args := []string{"config", "set", "--secret", "--stack", o.stack.name, "--config-file", o.stack.configFile()}
		if item.path {
			args = append(args, "--path")
		}
		if o.runner.version.GTE(rawConfigVersion) {
			args = append(args, "--raw")
		}
		args = append(args, "--", item.key)
		res, err := o.helper(ctx, commandTimeout, invocation{args: args, stdin: strings.NewReader(item.value)})
		if err != nil {
			return err
		}
		if res.code != 0 {
			f := classify(res, &summary{})
			if f.reason == proto.FailureReason_FAILURE_REASON_UPDATE_FAILED {
				f.reason = proto.FailureReason_FAILURE_REASON_CONFIG_INVALID
			}
			f.message = fmt.Sprintf("config %s: %s", item.key, f.message)
			return f
		}
	}
	return nil
}
