// Package features names the feature gates of the controller and reads their settings.
package features

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/pflag"
	cliflag "k8s.io/component-base/cli/flag"

	runtimectrl "github.com/fluxcd/pkg/runtime/controller"
)

// ExternalArtifact lets Stacks use sources of kind ExternalArtifact.
const ExternalArtifact = runtimectrl.FeatureGateExternalArtifact

// Defaults returns all gates with their default states.
func Defaults() map[string]bool {
	return map[string]bool{
		ExternalArtifact: true,
	}
}

// Gates holds the state of the gates. It does not change once the flags are parsed.
type Gates struct {
	settings map[string]bool
}

// BindFlags adds the flag --feature-gates, which has the syntax that it has in Flux's controllers.
func (g *Gates) BindFlags(fs *pflag.FlagSet) {
	fs.Var(cliflag.NewMapStringBool(&g.settings), "feature-gates",
		"A comma separated list of key=value pairs defining the state of experimental features.")
}

// Validate returns an error when a setting names no gate.
func (g *Gates) Validate() error {
	known := Defaults()
	for _, name := range slices.Sorted(maps.Keys(g.settings)) {
		if _, ok := known[name]; !ok {
			return fmt.Errorf("unknown feature gate %q, known are %s",
				name, strings.Join(slices.Sorted(maps.Keys(known)), ", "))
		}
	}
	return nil
}

// Enabled returns the state of the gate. A name that is not in Defaults is off.
func (g *Gates) Enabled(name string) bool {
	if enabled, ok := g.settings[name]; ok {
		return enabled
	}
	return Defaults()[name]
}
