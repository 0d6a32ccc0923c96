package operation

import (
	"os"
	"path/filepath"
	"testing"

	. "github.com/onsi/gomega"
)

// tree writes files below dir. Each file contains its name, which includes its directory.
func tree(g *WithT, dir string, files ...string) {
	for _, name := range files {
		path := filepath.Join(dir, name)
		g.Expect(os.MkdirAll(filepath.Dir(path), 0o755)).To(Succeed())
		g.Expect(os.WriteFile(path, []byte(name), 0o600)).To(Succeed())
	}
}

func names(g *WithT, dir string) (names []string) {
	entries, err := os.ReadDir(dir)
	g.Expect(err).NotTo(HaveOccurred())
	for _, entry := range entries {
		names = append(names, entry.Name())
	}
	return names
}

func TestSharedPluginsAreUsedBesideThoseOfTheWorkspace(t *testing.T) {
	g := NewWithT(t)
	shared, own := t.TempDir(), filepath.Join(t.TempDir(), ".pulumi", "plugins")
	tree(g, shared, "resource-aws-v7.9.0/pulumi-resource-aws", "resource-aws-v7.9.0/dir/file", "resource-kept-v1.0.0/shared",
		"resource-half-v1.0.0/pulumi-resource-half", "resource-half-v1.0.0.partial", "resource-half-v1.0.0.lock", "lost+found/x", "schema-aws-7.9.0-.json")
	tree(g, own, "resource-kept-v1.0.0/own", "resource-other-v1.0.0/own", "schema-kept.json", ".shared-KILLED/pulumi-resource-aws")

	g.Expect(linkPlugins(shared+"/", own)).To(Succeed())
	g.Expect(names(g, own)).To(ConsistOf("resource-aws-v7.9.0", "resource-kept-v1.0.0", "resource-other-v1.0.0", "schema-kept.json"))
	g.Expect(names(g, filepath.Join(own, "resource-kept-v1.0.0"))).To(ConsistOf("own"))
	for _, name := range []string{"resource-aws-v7.9.0/pulumi-resource-aws", "resource-aws-v7.9.0/dir/file"} {
		g.Expect(os.ReadFile(filepath.Join(own, name))).To(BeEquivalentTo(name))
	}
	// A plugin is a directory for the CLI, not a link to one.
	info, err := os.Lstat(filepath.Join(own, "resource-aws-v7.9.0"))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(info.IsDir()).To(BeTrue())

	// The volume has other plugins now.
	g.Expect(os.RemoveAll(filepath.Join(shared, "resource-aws-v7.9.0"))).To(Succeed())
	tree(g, shared, "resource-aws-v7.10.0/pulumi-resource-aws")
	g.Expect(linkPlugins(shared, own)).To(Succeed())
	g.Expect(names(g, own)).To(ConsistOf("resource-aws-v7.10.0", "resource-kept-v1.0.0", "resource-other-v1.0.0", "schema-kept.json"))
	g.Expect(linkPlugins(filepath.Join(shared, "missing"), own)).To(MatchError(ContainSubstring("list the shared plugins")))
}

func TestOldPluginsAreRemovedFromAFullVolume(t *testing.T) {
	g := NewWithT(t)
	shared, own := t.TempDir(), t.TempDir()
	tree(g, shared, "resource-aws-v5.0.0/pulumi-resource-aws", "resource-gcp-v9.0.0/pulumi-resource-gcp")
	g.Expect(linkPlugins(shared, own)).To(Succeed())
	tree(g, own, "resource-aws-v6.9.0/x", "resource-aws-v6.10.0/x", "resource-aws-v6.10.0-alpha.1/x", "resource-aws-native-v1.0.0/x", "resource-gcp-v8.0.0/x",
		"language-aws-v1.0.0/x", "resource-git-v0.0.0-xabc/x", "resource-odd-v1/x", "resource-odd-v2/x", "resource-aws-v6.9.0.lock", "schema-aws-6.9.0.json", ".gone-resource-x-v1.0.0/x")

	g.Expect(removeOldPlugins(own)).To(Equal(4))
	g.Expect(names(g, own)).To(ConsistOf("resource-aws-v5.0.0", "resource-gcp-v9.0.0", "resource-aws-v6.10.0", "resource-aws-native-v1.0.0",
		"language-aws-v1.0.0", "resource-git-v0.0.0-xabc", "resource-odd-v1", "resource-odd-v2", "resource-aws-v6.9.0.lock", "schema-aws-6.9.0.json"))
	g.Expect(isFullVolume("/")).To(BeFalse(), "what is in the image stays")
	g.Expect(isFullVolume("/proc")).To(BeTrue(), "another file system without room")
}
