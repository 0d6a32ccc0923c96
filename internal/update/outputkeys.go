package update

import (
	"crypto/sha256"
	"encoding/hex"
	"regexp"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
)

// notKeyCharacter is what must not be in a key of a Secret.
var notKeyCharacter = regexp.MustCompile(`[^-._a-zA-Z0-9]`)

// outputKeys gives every output a key of its own in a Secret. A name that is a valid key stays as it is; another one has its
// other characters replaced, and ends with a part of its hash where that is somebody else's key already. The result depends
// on the names only.
func outputKeys(names []string) map[string]string {
	keys := make(map[string]string, len(names))
	taken := make(map[string]bool, len(names))
	slices.Sort(names)
	// Valid names first, for nobody else may take those.
	for _, name := range names {
		if len(validation.IsConfigMapKey(name)) == 0 {
			keys[name], taken[name] = name, true
		}
	}
	// Then names that several outputs would have: none of them gets it.
	wanted := map[string]int{}
	for _, name := range names {
		if _, done := keys[name]; !done {
			wanted[cleaned(name)]++
		}
	}
	for _, name := range names {
		if _, done := keys[name]; done {
			continue
		}
		key := cleaned(name)
		if wanted[key] > 1 {
			key = hashed(name, key, validation.DNS1123SubdomainMaxLength)
		}
		for taken[key] {
			key = hashed(name+key, key, validation.DNS1123SubdomainMaxLength)
		}
		keys[name], taken[key] = key, true
	}
	return keys
}

// cleaned makes a valid key of any name.
func cleaned(name string) string {
	key := notKeyCharacter.ReplaceAllString(name, "_")
	if rest := strings.TrimLeft(key, "."); rest != key && (rest == "" || strings.HasPrefix(key, "..")) {
		key = strings.Repeat("_", len(key)-len(rest)) + rest
	}
	if key == "" {
		key = "_"
	}
	return shortened(key, validation.DNS1123SubdomainMaxLength)
}

// shortened returns text of at most limit characters; what is cut off is replaced by a hash, so that different texts stay
// different.
func shortened(text string, limit int) string {
	if len(text) <= limit {
		return text
	}
	return hashed(text, text, limit)
}

// hashed returns prefix with a hash of text at its end, at most limit characters.
func hashed(text, prefix string, limit int) string {
	sum := sha256.Sum256([]byte(text))
	suffix := "-" + hex.EncodeToString(sum[:8])
	// A name must not have a dot or a dash before the dash.
	return strings.TrimRight(prefix[:min(len(prefix), limit-len(suffix))], ".-") + suffix
}
