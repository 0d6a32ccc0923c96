// Package newfields lists the fields that the Pulumi Kubernetes Operator does not know, and what the operator does instead. It is the only
// list of these fields: handing back asks about those that forbid something and warns about the others, and tests and the compatibility pages use it.
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
	// Forbids reports whether the field keeps the controller from something that the operator then does: a run, a change, a destroy, or one of
	// them before something else has happened.
	Forbids bool
}

const (
	unlimited   = "lets updates take any time"
	unknownHost = "does not know the keys of the git server"
	noCerts     = "does not use these certificates"
	noProxy     = "does not use this proxy"
	submodules  = "decides itself about submodules"
	unset       = "leaves this configuration without a value"
	withoutPlan = "runs without a plan"
	noLogin     = "does not log in to Pulumi Cloud with it"
	pruned      = "removes it, so that another program runs"
)

// stacks are the new fields of a Stack, without those of its templates.
var stacks = []Field{
	{"spec.approval", "runs what nobody has approved", true},
	{"spec.requireVerified", "runs sources that Flux has not verified", true},
	{"spec.suspend", "updates this Stack", true},
	{"spec.dependsOn", "does not wait for other Stacks and objects", true},
	{"spec.destroyAfterDependents", "destroys this Stack before those that depend on it", true},
	{"spec.pulumiCloud", noLogin, false},
	{"spec.drift", "does not look for drift", false},
	{"spec.outputs", "does not write these objects", false},
	{"spec.inputs", "updates this Stack without this configuration", true},
	{"spec.shareOutputs", "", false},
	{"spec.rolloutRef", "updates this Stack to each revision at once", true},
	{"spec.windows", "updates this Stack at any time", true},
	{"spec.sourcePaths", "updates this Stack for each commit", false},
	{"spec.recurseSubmodules", submodules, false},
	{"spec.gitAuth.knownHostsRef", unknownHost, false},
	{"spec.gitAuth.certSecretRef", noCerts, false},
	{"spec.gitAuth.proxySecretRef", noProxy, false},
	{"spec.timeout", unlimited, false},
	{"spec.retryInterval", "retries at its own intervals", false},
	{"spec.resyncFrequency", "uses spec.resyncFrequencySeconds, 60 by default", false},
	{"spec.fluxSource.sourceRef.namespace", "", false}, // matters only for another namespace, see handBackStacks
	{"spec.updateOn", "", false},                       // the operator updates for each revision
	{"spec.initOnCreate", "", false},                   // from version 1.x; this controller ignores it, too
	{"spec.updateHistoryLimit", "", false},             // only bounds the history
	{"spec.workspaceIdleTimeout", "", false},
	{"spec.envRefs.*.file", "leaves this variable without a value", false},
}

var workspaces = []Field{
	{"spec.idleTimeout", "", false},
	{"spec.envFiles", "leaves these variables without a value", false},
	{"spec.git.auth.knownHostsRef", unknownHost, false},
	{"spec.git.auth.certSecretRef", noCerts, false},
	{"spec.git.auth.proxySecretRef", noProxy, false},
	{"spec.git.auth.secretRef", "does not use these credentials", false},
	{"spec.git.recurseSubmodules", submodules, false},
	{"spec.stacks[].config[].valueFrom.secretKeyRef", unset, false},
	{"spec.stacks[].config[].valueFrom.configMapKeyRef", unset, false},
	{"spec.stacks[].inputs", unset, false},
}

// logins are the new fields of a Workspace that a workspace template does not have.
var logins = []Field{
	{"spec.pulumiCloud", noLogin, false},
}

// plans are the new fields of an Update that an update template does not have.
var plans = []Field{
	{"spec.savePlan", withoutPlan, true},
	{"spec.plan", withoutPlan, true},
	{"spec.planEnforcement", withoutPlan, true},
}

// templatedUpdates are the new fields that both an Update and an update template have.
var templatedUpdates = []Field{
	{"spec.previewOnly", "changes the resources", true},
	{"spec.expectNoRefreshChanges", "does not fail when it finds drift", true},
	{"spec.requireStack", "does not check whether the stack exists", true},
	{"spec.exclude", "changes the resources too that it excludes", true},
	{"spec.excludeDependents", "", false}, // nothing without exclude
	{"spec.source", "runs what its Workspace has", false},
	{"spec.timeout", unlimited, false},
	{"spec.projectInfo", "needs the program", false},
	{"spec.newStack", "", false}, // this and the next field only help to recognise what an earlier operation left
	{"spec.afterInterruption", "", false},
}

var programs = []Field{
	{"program.author", "", false},
	{"program.components", pruned, false},
	{"program.config", pruned, false},
	{"program.configuration.*.items", pruned, false},
	{"program.configuration.*.name", pruned, false},
	{"program.configuration.*.secret", pruned, false},
	{"program.configuration.*.value", pruned, false},
	{"program.description", "", false},
	{"program.license", "", false},
	{"program.plugins", pruned, false},
	{"program.pulumi", pruned, false},
	{"program.requiredPulumiVersion", pruned, false},
	{"program.website", "", false},
	{"program.resources.*.defaultProvider", pruned, false},
	{"program.resources.*.name", pruned, false},
	{"program.resources.*.options.deletedWith", pruned, false},
	{"program.resources.*.options.envVarMappings", pruned, false},
	{"program.resources.*.options.hideDiffs", pruned, false},
	{"program.resources.*.options.pluginDownloadURL", pruned, false},
	{"program.resources.*.options.replaceOnChanges", pruned, false},
	{"program.resources.*.options.replaceWith", pruned, false},
	{"program.resources.*.options.replacementTrigger", pruned, false},
	{"program.resources.*.options.retainOnDelete", pruned, true},
}

// Of returns the new fields of the CustomResourceDefinition with this name, including those of its templates.
func Of(definition string) []Field {
	switch definition {
	case Stacks:
		return slices.Concat(stacks, below("spec.workspaceTemplate.", workspaces), below("spec.updateTemplate.", templatedUpdates))
	case Programs:
		return slices.Clone(programs)
	case Workspaces:
		return slices.Concat(workspaces, logins)
	case Updates:
		return slices.Concat(templatedUpdates, plans)
	}
	return nil
}

func below(prefix string, fields []Field) (all []Field) {
	for _, field := range fields {
		all = append(all, Field{prefix + field.Path, field.Instead, field.Forbids})
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
