// Command pulumi-kubernetes is Pulumi's provider for Kubernetes, pulumi-resource-kubernetes. The main package of upstream embeds files that
// its module lacks, because they are generated; this one embeds those that they are generated from.
package main

import (
	"bytes"
	_ "embed"

	"github.com/pulumi/pulumi-kubernetes/provider/v4/pkg/provider"
	"github.com/pulumi/pulumi-kubernetes/provider/v4/pkg/version"
)

// The build places the files of upstream here: see tests/tools/build.go.
var (
	//go:embed schema.json
	schema []byte
	//go:embed terraform-mapping.json
	mapping []byte
)

func main() {
	versioned := bytes.Replace(schema, []byte("{"), []byte(`{"version": "`+version.Version+`",`), 1)
	provider.Serve("kubernetes", version.Version, versioned, mapping)
}
