"""The paper's evaluation: domains, studies, reports and limits. Nothing in the library imports it."""
