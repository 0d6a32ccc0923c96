package compatibility_test

import (
	"regexp"
	"strings"
)

// strictRule is a rule that the operator does not have, with the reason why it is kept.
type strictRule struct {
	rule
	why string
}

const rulesIntroduction = `
The API server accepts the same objects as with the operator's CRDs, except for the rules below. Other mistakes are reported by the
controller with a condition, where the operator rejects them later or retries without a status: two sources, a commit together with a
branch, a reference that names nothing, an Update without a type. A test compares this list with the CRDs.`

const newFieldsIntroduction = `Fields that the operator does not have can have rules as well. They do not affect manifests for the operator:`

// undecodable explains rules without which the API server could store an object that no controller can decode.
const undecodable = `With another value, a controller cannot decode the object, and cannot list any object of the kind. The operator stops for all
	namespaces.`

// templated explains rules of a template that are also rules of the object created from it.
const templated = `The object that is created from the template has this rule in both systems. The operator finds out only then, and retries without
	limit and without a condition.`

// Rules about plans.
const (
	savePlanRule = "!has(self.savePlan) || !self.savePlan || has(self.type) && (self.type == 'preview' || " +
		"self.type == 'destroy' && has(self.previewOnly) && self.previewOnly)"
	planEnforcementRule = "!has(self.planEnforcement) || has(self.savePlan) && self.savePlan"
	planRule            = "!has(self.plan) || has(self.type) && (self.type == 'up' || " +
		"self.type == 'destroy' && !(has(self.previewOnly) && self.previewOnly))"
)

var stricterRules = []strictRule{
	{rule{"Stack v1alpha1", "", "size(self.metadata.name) <= 42"},
		`The operator has this rule only in v1, although both versions are the same object. With a longer name, the API server rejects the
		StatefulSet.`},
	{rule{"Stack", "spec", "!(has(self.resyncFrequency) && has(self.resyncFrequencySeconds))"},
		"The operator does not have the field `resyncFrequency`."},
	{rule{"Update", "spec", savePlanRule}, "The operator does not have the field `savePlan`."},
	{rule{"Update", "spec", planEnforcementRule}, "The operator does not have the field `planEnforcement`."},
	{rule{"Update", "spec", planRule}, "The operator does not have the field `plan`."},
	{rule{"Stack", "spec.prerequisites[].requirement.succeededWithinDuration", "duration(self) == duration(self)"}, undecodable},
	{rule{"Stack", "spec.updateTemplate.spec.ttlAfterCompleted", "duration(self) == duration(self)"}, undecodable},
	{rule{"Update", "spec.ttlAfterCompleted", "duration(self) == duration(self)"}, undecodable},
	{rule{"Workspace", "spec.pulumiLogLevel", "not less than 0"}, undecodable},
	{rule{"Stack", "spec.workspaceTemplate.spec.pulumiLogLevel", "not less than 0"}, undecodable},
	{rule{"Workspace", "spec.securityProfile", "one of baseline, restricted"},
		`With any other value, the operator applies none of the settings of the profile ` + "`restricted`" + `, so a typo removes the protection.`},
	{rule{"Stack", "spec.workspaceTemplate.spec.securityProfile", "one of baseline, restricted"}, "As for a Workspace."},
	{rule{"Stack", "spec.workspaceTemplate.spec.env", "no two items with the same name"}, templated},
	{rule{"Stack", "spec.workspaceTemplate.spec.stacks", "no two items with the same name"}, templated},
	{rule{"Stack", "spec.workspaceTemplate.spec.stacks[]", "required: name"}, templated},
	{rule{"Stack", "spec.workspaceTemplate.spec.stacks[].config", "no two items with the same key"}, templated},
	{rule{"Stack", "spec.workspaceTemplate.spec.stacks[].config[]", "required: key"}, templated},
	{rule{"Stack", "spec.workspaceTemplate.spec.projectInfo", "required: name"}, templated},
	{rule{"Stack", "spec.workspaceTemplate.spec.projectInfo", "required: runtime"}, templated},
	{rule{"Stack", "spec.workspaceTemplate.spec.git.auth.githubApp", "required: appID"}, templated},
	{rule{"Stack", "spec.workspaceTemplate.spec.git.auth.githubApp", "required: installationID"}, templated},
	{rule{"Stack", "spec.workspaceTemplate.spec.git.auth.githubApp", "required: privateKey"}, templated},
}

// kubernetesFields matches the fields whose types are Kubernetes' own, both here and in the operator's definitions. If our version of
// Kubernetes has fields that an older version does not have, these fields bring rules of their own.
var kubernetesFields = []*regexp.Regexp{
	regexp.MustCompile(`(^|\.)conditions($|\[\])`),
	regexp.MustCompile(`\.podTemplate\.spec($|\.)`),
	regexp.MustCompile(`\.envFrom($|\[\])`),
	regexp.MustCompile(`\.env\[\]`),
	regexp.MustCompile(`\.spec\.resources\.|^spec\.resources\.`),
	regexp.MustCompile(`\.git\.auth\.(sshPrivateKey|username|password|token)$|^spec\.git\.auth\.(sshPrivateKey|username|password|token)$`),
	regexp.MustCompile(`(^|\.)git\.auth\.githubApp\.(appID|installationID|privateKey)$`),
}

// valueReferences matches the fields of a Stack that refer to values.
const valueReferences = "spec.{envRefs.*,secretsRef.*,gitAuth.accessToken,gitAuth.sshAuth.sshPrivateKey,gitAuth.sshAuth.password," +
	"gitAuth.basicAuth.userName,gitAuth.basicAuth.password,gitAuth.githubApp.appID,gitAuth.githubApp.installationID,gitAuth.githubApp.privateKey}"

// operatorRules are the rules that are both in the operator's definitions and in ours.
var operatorRules = []rule{
	{"Stack v1", "", "size(self.metadata.name) <= 42"},
	{"Stack", "spec", "required: stack"},
	{"Stack", "spec.configRef.*", "required: key"},
	{"Stack", "spec.configRef.*", "required: name"},
	{"Stack", valueReferences, "required: type"},
	{"Stack", valueReferences + ".env", "required: name"},
	{"Stack", valueReferences + ".filesystem", "required: path"},
	{"Stack", valueReferences + ".literal", "required: value"},
	{"Stack", valueReferences + ".secret", "required: key"},
	{"Stack", valueReferences + ".secret", "required: name"},
	{"Stack", "spec.fluxSource", "required: sourceRef"},
	{"Stack", "spec.fluxSource.sourceRef", "required: kind"},
	{"Stack", "spec.fluxSource.sourceRef", "required: name"},
	{"Stack", "spec.gitAuth.basicAuth", "required: password"},
	{"Stack", "spec.gitAuth.basicAuth", "required: userName"},
	{"Stack", "spec.gitAuth.sshAuth", "required: sshPrivateKey"},
	{"Stack", "spec.gitAuth.githubApp", "required: appID"},
	{"Stack", "spec.gitAuth.githubApp", "required: installationID"},
	{"Stack", "spec.gitAuth.githubApp", "required: privateKey"},
	{"Stack", "spec.prerequisites[]", "required: name"},
	{"Stack", "spec.programRef", "required: name"},
	{"Stack", "spec.workspaceReclaimPolicy", "one of Retain, Delete"},
	{"Stack", "status.projectInfo", "required: name"},
	{"Stack", "status.projectInfo", "required: runtime"},
	{"Program", "program.resources.*", "required: type"},
	{"Program", "program.resources.*.type", "not shorter than 1"},
	{"Program", "program.resources.*.get", "required: id"},
	// The operator lists four of the types that the pattern allows.
	{"Program", "program.configuration.*.type", "pattern ^(?i)(array|string|number|int|integer|bool|boolean|object|list< *(string|number|int|integer|bool|boolean|object) *>)$"},
	{"Program", "status.artifact", "required: digest"},
	{"Program", "status.artifact", "required: lastUpdateTime"},
	{"Program", "status.artifact", "required: path"},
	{"Program", "status.artifact", "required: revision"},
	{"Program", "status.artifact", "required: url"},
	{"Program", "status.artifact.digest", "pattern ^[a-z0-9]+(?:[.+_-][a-z0-9]+)*:[a-zA-Z0-9=_-]+$"},
	{"Workspace", "spec.env", "no two items with the same name"},
	{"Workspace", "spec.git.auth.githubApp", "required: appID"},
	{"Workspace", "spec.git.auth.githubApp", "required: installationID"},
	{"Workspace", "spec.git.auth.githubApp", "required: privateKey"},
	{"Workspace", "spec.projectInfo", "required: name"},
	{"Workspace", "spec.projectInfo", "required: runtime"},
	{"Workspace", "spec.stacks", "no two items with the same name"},
	{"Workspace", "spec.stacks[]", "required: name"},
	{"Workspace", "spec.stacks[].config", "no two items with the same key"},
	{"Workspace", "spec.stacks[].config[]", "required: key"},
	{"Update", "status.projectInfo", "required: name"},
	{"Update", "status.projectInfo", "required: runtime"},
}

// newFields returns the fields of the kind that the operator does not have.
func newFields(kind string) []string {
	workspace := []string{
		"git.auth.secretRef", "git.auth.knownHostsRef", "git.auth.certSecretRef", "git.auth.proxySecretRef",
		"stacks[].inputs", "stacks[].config[].valueFrom.secretKeyRef", "stacks[].config[].valueFrom.configMapKeyRef",
		"idleTimeout", "envFiles",
	}
	update := []string{"source", "timeout", "projectInfo", "previewOnly"}
	var fields []string
	switch kind {
	case "Workspace":
		fields = append(under("spec", workspace), "spec.pulumiCloud")
	case "Update":
		fields = append(under("spec", update), "spec.savePlan", "spec.planEnforcement", "spec.plan", "status.changes", "status.plan")
	case "Program":
		fields = under("program", withoutOperator(newProgramRows()))
	case "Stack":
		fields = append(under("spec", withoutOperator(newRows)), under("status", withoutOperator(statusRows))...)
		fields = append(fields, under("spec.workspaceTemplate.spec", workspace)...)
		fields = append(fields, under("spec.updateTemplate.spec", update)...)
		// These fields have rows in other tables.
		fields = append(fields, "spec.resyncFrequency", "spec.gitAuth.knownHostsRef", "spec.gitAuth.certSecretRef", "spec.gitAuth.proxySecretRef")
		for _, reference := range []string{
			"envRefs.*", "secretsRef.*", "gitAuth.accessToken", "gitAuth.sshAuth.sshPrivateKey", "gitAuth.sshAuth.password", "gitAuth.basicAuth.userName",
			"gitAuth.basicAuth.password", "gitAuth.githubApp.appID", "gitAuth.githubApp.installationID", "gitAuth.githubApp.privateKey",
		} {
			fields = append(fields, "spec."+reference+".file")
		}
	}
	return fields
}

// withoutOperator returns the fields of the rows which say that the operator does not have the field.
func withoutOperator(rows []row) (fields []string) {
	for _, row := range rows {
		if strings.HasPrefix(row.operator, "None") {
			fields = append(fields, withoutCase(row.field))
		}
	}
	return fields
}

func under(top string, fields []string) []string {
	below := make([]string, len(fields))
	for i, field := range fields {
		below[i] = top + "." + field
	}
	return below
}
