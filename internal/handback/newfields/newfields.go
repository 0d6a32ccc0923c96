// Package newfields lists the fields that the Pulumi Kubernetes Operator does not know, and what the operator does instead. It is the only
// list of these fields: hand-back warns about them, and tests and the compatibility pages use it.
package newfields

import (
	"slices"
	"strings"
)

// These are the names of the CustomResourceDefinitions that the operator has, too.
const (
	Stacks     = "stacks.pulumi.com"
	Programs   = "programs.pulumi.com"
	Workspaces = "workspaces.auto.pulumi.com"
	Updates    = "updates.auto.pulumi.com"
)

// Field is a field that the operator does not know.
type Field struct {
	// Path is the path of the field in a manifest, with * for the key of a map and [] for an item of a list. All fields below it are new,
	// too.
	Path string
	// Instead is what the operator does, to be read after "the operator does not know FIELD, and"; empty if no note is needed.
	Instead string
}

const (
	unlimited   = "lets updates take any time"
	unknownHost = "does not know the keys of the git server"
	noCerts     = "does not use these certificates"
	noProxy     = "does not use this proxy"
	submodules  = "decides itself about submodules"
	unset       = "leaves this configuration without a value"
	withoutPlan = "runs without a plan"
	pruned      = "removes it, so that another program runs"
)

// stacks are the new fields of a Stack, without those of its templates.
var stacks = []Field{
	{"spec.approval", "runs what nobody has approved"},
	{"spec.requireVerified", "runs sources that Flux has not verified"},
	{"spec.suspend", "updates this Stack"},
	{"spec.dependsOn", "does not wait for other Stacks"},
	{"spec.destroyAfterDependents", "destroys this Stack before those that depend on it"},
	{"spec.drift", "does not look for drift"},
	{"spec.sourcePaths", "updates this Stack for each commit"},
	{"spec.recurseSubmodules", submodules},
	{"spec.gitAuth.knownHostsRef", unknownHost},
	{"spec.gitAuth.certSecretRef", noCerts},
	{"spec.gitAuth.proxySecretRef", noProxy},
	{"spec.timeout", unlimited},
	{"spec.retryInterval", "retries at its own intervals"},
	{"spec.resyncFrequency", "uses spec.resyncFrequencySeconds, 60 by default"},
	{"spec.fluxSource.sourceRef.namespace", ""}, // matters only for another namespace, see handBackStacks
	{"spec.updateOn", ""},                       // the operator updates for each revision
	{"spec.initOnCreate", ""},                   // from version 1.x; this controller ignores it, too
	{"spec.updateHistoryLimit", ""},             // only bounds the history
	{"spec.workspaceIdleTimeout", ""},
}

var workspaces = []Field{
	{"spec.idleTimeout", ""},
	{"spec.git.auth.knownHostsRef", unknownHost},
	{"spec.git.auth.certSecretRef", noCerts},
	{"spec.git.auth.proxySecretRef", noProxy},
	{"spec.git.auth.secretRef", "does not use these credentials"},
	{"spec.git.recurseSubmodules", submodules},
	{"spec.stacks[].config[].valueFrom.secretKeyRef", unset},
	{"spec.stacks[].config[].valueFrom.configMapKeyRef", unset},
}

// plans are the new fields of an Update that an update template does not have.
var plans = []Field{
	{"spec.savePlan", withoutPlan},
	{"spec.plan", withoutPlan},
	{"spec.planEnforcement", withoutPlan},
}

// templatedUpdates are the new fields that both an Update and an update template have.
var templatedUpdates = []Field{
	{"spec.previewOnly", "changes the resources"},
	{"spec.expectNoRefreshChanges", "does not fail when it finds drift"},
	{"spec.requireStack", "does not check whether the stack exists"},
	{"spec.source", "runs what its Workspace has"},
	{"spec.timeout", unlimited},
	{"spec.projectInfo", "needs the program"},
	{"spec.newStack", ""}, // this and the next field only help to recognise what an earlier operation left
	{"spec.afterInterruption", ""},
}

var programs = []Field{
	{"program.author", ""},
	{"program.components", pruned},
	{"program.config", pruned},
	{"program.configuration.*.items", pruned},
	{"program.configuration.*.name", pruned},
	{"program.configuration.*.secret", pruned},
	{"program.configuration.*.value", pruned},
	{"program.description", ""},
	{"program.license", ""},
	{"program.plugins", pruned},
	{"program.pulumi", pruned},
	{"program.requiredPulumiVersion", pruned},
	{"program.website", ""},
	{"program.resources.*.defaultProvider", pruned},
	{"program.resources.*.name", pruned},
	{"program.resources.*.options.deletedWith", pruned},
	{"program.resources.*.options.envVarMappings", pruned},
	{"program.resources.*.options.hideDiffs", pruned},
	{"program.resources.*.options.pluginDownloadURL", pruned},
	{"program.resources.*.options.replaceOnChanges", pruned},
	{"program.resources.*.options.replaceWith", pruned},
	{"program.resources.*.options.replacementTrigger", pruned},
	{"program.resources.*.options.retainOnDelete", pruned},
}

// Of returns the new fields of the CustomResourceDefinition with this name, including those of its templates.
func Of(definition string) []Field {
	switch definition {
	case Stacks:
		return slices.Concat(stacks, below("spec.workspaceTemplate.", workspaces), below("spec.updateTemplate.", templatedUpdates))
	case Programs:
		return slices.Clone(programs)
	case Workspaces:
		return slices.Clone(workspaces)
	case Updates:
		return slices.Concat(templatedUpdates, plans)
	}
	return nil
}

func below(prefix string, fields []Field) (all []Field) {
	for _, field := range fields {
		all = append(all, Field{prefix + field.Path, field.Instead})
	}
	return all
}

// IsSetIn reports whether the field is set in the object, which is decoded from JSON. A field that is null, false or an empty string counts
// as not set.
func (f Field) IsSetIn(object map[string]any) bool { return isSet(object, strings.Split(f.Path, ".")) }

func isSet(value any, path []string) bool {
	if len(path) == 0 {
		return value != nil && value != false && value != ""
	}
	object, _ := value.(map[string]any)
	if path[0] == "*" {
		for _, item := range object {
			if isSet(item, path[1:]) {
				return true
			}
		}
		return false
	}
	name, isList := strings.CutSuffix(path[0], "[]")
	if !isList {
		return isSet(object[name], path[1:])
	}
	items, _ := object[name].([]any)
	return slices.ContainsFunc(items, func(item any) bool { return isSet(item, path[1:]) })
}
