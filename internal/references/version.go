package references

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// versionLength is how many hexadecimal digits stand for a version. A change is overlooked when a new version looks like one that was
// used before: one in 2^48 for each object.
const versionLength = 12

// Version is one version of one object.
type Version struct {
	Key
	// ID stands for the version. It is made of the object's name, UID and resource version, and of nothing that is in it: a hash of a
	// secret value in a status could be compared with those of guessed values by everybody who may read the status.
	ID string
}

// VersionOf returns the version of the object.
func VersionOf(kind Kind, object metav1.Object) Version {
	hash := sha256.New()
	for _, part := range []string{string(kind), object.GetNamespace(), object.GetName(), string(object.GetUID()), object.GetResourceVersion()} {
		fmt.Fprintf(hash, "%d:%s", len(part), part)
	}
	return Version{
		Key: Key{Kind: kind, Namespace: object.GetNamespace(), Name: object.GetName()},
		ID:  hex.EncodeToString(hash.Sum(nil))[:versionLength],
	}
}

// separator stands between the versions in a digest.
const separator = ","

// Digest returns what a status says about versions: one ID for each, sorted. Because each can be told from the others, a version that
// nobody has used yet differs from one that is merely gone; see NotIn.
func Digest(versions []Version) string {
	ids := make([]string, len(versions))
	for i := range versions {
		ids[i] = versions[i].ID
	}
	return join(ids)
}

// Union returns the digest of the versions that are in either digest.
func Union(a, b string) string {
	return join(append(split(a), split(b)...))
}

// NotIn returns the versions that are not in the digest, in their order.
func NotIn(versions []Version, digest string) []Version {
	known := split(digest)
	return slices.DeleteFunc(slices.Clone(versions), func(version Version) bool { return slices.Contains(known, version.ID) })
}

// Covers tells whether all versions of the other digest are in the digest.
func Covers(digest, other string) bool {
	known := split(digest)
	return !slices.ContainsFunc(split(other), func(id string) bool { return !slices.Contains(known, id) })
}

func join(ids []string) string {
	slices.Sort(ids)
	return strings.Join(slices.Compact(ids), separator)
}

func split(digest string) []string {
	if digest == "" {
		return nil
	}
	return strings.Split(digest, separator)
}
